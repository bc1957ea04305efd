"""Many runs that belong together: comparisons."""
