"""Each statement as a function of problems and λ: by how much it is violated, how tight it is."""
