"""The UVA/Padova model of type-1 diabetes for N patients at once: its numbers and equations.

The equations are those of Dalla Man, Rizza and Cobelli (2007) and Kovatchev et al. (2009). The
patients' numbers are the ones published in J. Xie's simglucose (MIT licence), which NeoRL2 uses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np


class Parameters(NamedTuple):
    """Numbers of N patients, an array [N] each; rates are per minute, amounts per kg of body."""

    BW: np.ndarray  # body weight, kg
    Gb: np.ndarray  # fasting plasma glucose, mg/dl
    Ib: np.ndarray  # fasting plasma insulin, pmol/l
    Km0: np.ndarray  # half-saturation of glucose uptake, mg/kg
    Vg: np.ndarray  # volume of glucose, dl/kg
    Vi: np.ndarray  # volume of insulin, l/kg
    Vm0: np.ndarray  # largest uptake of glucose at fasting insulin, mg/kg
    Vmx: np.ndarray  # its growth with insulin
    b: np.ndarray  # fractions of a meal in the stomach at which emptying slows (b) ...
    d: np.ndarray  # ... and quickens again (d)
    k1: np.ndarray  # glucose from plasma to tissue
    k2: np.ndarray  # and back
    ka1: np.ndarray  # insulin from the first depot under the skin to plasma
    ka2: np.ndarray  # and from the second
    kabs: np.ndarray  # absorption from the gut
    kd: np.ndarray  # insulin from the first depot to the second
    ki: np.ndarray  # delay of insulin's effect on the liver
    kmax: np.ndarray  # fastest emptying of the stomach
    kmin: np.ndarray  # slowest
    kp1: np.ndarray  # the liver's glucose production, mg/kg
    kp2: np.ndarray  # its brake by glucose
    kp3: np.ndarray  # and by insulin
    ksc: np.ndarray  # glucose from plasma to the sensor's tissue
    m1: np.ndarray  # insulin from liver to plasma
    m2: np.ndarray  # and back
    p2u: np.ndarray  # delay of insulin's effect on uptake
    u2ss: np.ndarray  # insulin infused when fasting, pmol/kg

    @property
    def m30(self) -> np.ndarray:
        """Insulin that the liver degrades: 60 % of what reaches it."""
        return 1.5 * self.m1

    @property
    def m4(self) -> np.ndarray:
        """Insulin that plasma degrades."""
        return 0.4 * self.m2


# The same for every patient.
F = 0.9  # share of a meal that reaches the plasma
FSNC = 1.0  # glucose used by brain and red cells, mg/kg per minute
KE1 = 0.0005  # renal excretion ...
KE2 = 339.0  # ... above this much glucose in plasma, mg/kg

# Patients 1 to 5 of each age, from left to right.
_TABLE = {
    "adolescent": """
BW   68.706          51.046          44.791          49.564          47.074
Gb   149.02          152.41          145.9           144.7           139.03
Ib   97.554          119.18          101.28          108.88          113.09
Km0  260.89          223.01          216.57          248.78          278.74
Vg   1.6818          1.8387          2.2382          1.7147          2.0071
Vi   0.048153        0.050506        0.034438        0.039647        0.045653
Vm0  5.92854753098   12.228853658    2.84798631515   4.84283999312   5.34982624105
Vmx  0.074667        0.038897        0.060762        0.056525        0.050384
b    0.83072         0.76876         0.56424         0.77607         0.98829
d    0.32294         0.18887         0.14423         0.14467         0.13898
k1   0.057252        0.036957        0.10004         0.072211        0.079271
k2   0.067738        0.28643         0.080467        0.07298         0.14022
ka1  0.0025          0.0068          0.003           0.0026          0.0032
ka2  0.0115          0.0269          0.0148          0.0121          0.0177
kabs 0.091043        0.12473         0.046752        0.14452         1.2323
kd   0.0185          0.0163          0.0149          0.0155          0.0151
ki   0.0088838       0.0084603       0.0094229       0.0058346       0.010166
kmax 0.015865        0.034573        0.046773        0.030833        0.025659
kmin 0.0083338       0.006983        0.0066262       0.0096077       0.025281
kp1  11.5048231338   4.19657924407   6.58878876028   6.0416845715    4.6422316887
kp2  0.023318        0.0026879       0.0060918       0.0046256       0.0039814
kp3  0.023253        0.0079949       0.017571        0.015157        0.0062157
ksc  0.056           0.1314          0.1059          0.0751          0.0866
m1   0.15221         0.14477         0.10962         0.17822         0.13245
m2   0.259067825939  0.298755383281  0.414654673732  0.408322597923  0.297244948528
p2u  0.021344        0.017681        0.065784        0.037027        0.032703
u2ss 1.21697571391   1.79829979626   1.4462660088    1.76263284642   1.5346452819
""",
    "adult": """
BW   102.32          111.1           81.631          63.0            94.074
Gb   138.56          136.45          147.1           150.6888823     142.67
Ib   100.25          107.07          131.45          83.69716464     91.787
Km0  253.52          223.52          244.83          246.8818868     240.43
Vg   1.9152          1.6764          1.8564          1.886280201     1.8892
Vi   0.054906        0.03957         0.036354        0.07945256      0.04619
Vm0  3.2667306607    3.94361507564   9.27149654129   4.36659587223   5.18303932372
Vmx  0.031319        0.041095        0.074874        0.1086259       0.024825
b    0.70391         0.62708         0.86326         0.637997241     0.7092
d    0.21057         0.20388         0.20675         0.092495502     0.18486
k1   0.058138        0.054895        0.055487        0.093572522     0.067334
k2   0.087114        0.10712         0.22841         0.119405713     0.19683
ka1  0.0019          0.0037          0.0041          0.0038          0.0038
ka2  0.0078          0.0186          0.0156          0.014           0.0169
kabs 0.08906         0.021419        0.16971         0.080911441     0.039026
kd   0.0152          0.0152          0.0162          0.0207          0.0149
ki   0.0046374       0.0029398       0.016192        0.010115704     0.010603
kmax 0.046122        0.046859        0.042043        0.058161342     0.046023
kmin 0.0037927       0.0065141       0.0056532       0.00861298      0.0045175
kp1  4.73140582528   4.89081778378   4.73543373289   4.33596977264   4.15214768637
kp2  0.00469         0.006551        0.0025593       0.003087739     0.0042297
kp3  0.01208         0.010539        0.009496        0.005633774     0.0071329
ksc  0.0766          0.1043          0.0932          0.0776          0.0898
m1   0.15446         0.16433         0.14648         0.337462722     0.28494
m2   0.225027424083  0.290954038543  0.365377784552  0.211919578527  0.295815361468
p2u  0.027802        0.023888        0.037892        0.042193533     0.036957
u2ss 1.2386244136    1.23270240324   1.74604298612   1.40925544793   1.25415109169
""",
    "child": """
BW   34.55648182     28.53257352     41.23304017     35.5165043      37.78855797
Gb   141.2046604     143.3925294     133.8310731     133.7160874     137.8702919
Ib   110.3648078     104.3351578     96.38653336     124.0496989     119.291148
Km0  185.8820726     225.7855513     260.6177434     203.0817342     230.2404808
Vg   1.919425692     1.843653308     1.744184259     2.069817306     1.860357249
Vi   0.067013558     0.037434077     0.058049524     0.060653532     0.036389243
Vm0  3.65981019497   4.09430322593   4.54376905737   2.18057641516   5.49996517414
Vmx  0.152308243     0.062822379     0.063997085     0.145715992     0.109076135
b    0.754915658     0.83267505      0.595219309     0.778097629     0.960638488
d    0.089529251     0.168209241     0.119133938     0.095402818     0.201231635
k1   0.070852519     0.107264417     0.06352621      0.07313696      0.05596048
k2   0.128243663     0.067069068     0.151559162     0.055357799     0.137397884
ka1  0.0041          0.0033          0.0081          0.0042          0.0037
ka2  0.0243          0.012           0.0275          0.0193          0.0199
kabs 0.127494918     0.547271474     0.099733323     0.233436885     0.330887558
kd   0.0131          0.0168          0.018           0.0164          0.0197
ki   0.010902381     0.006425442     0.002815868     0.0074842       0.00697472
kmax 0.068714386     0.020390384     0.053017395     0.030653413     0.013142286
kmin 0.007997018     0.011239842     0.006550925     0.016230469     0.012509418
kp1  4.1652828427    8.24333692076   4.00983676085   4.40387455417   3.93405394015
kp2  0.002522654     0.008198363     0.003133049     0.002691865     0.001989104
kp3  0.008379266     0.023930547     0.011524925     0.010417071     0.007058817
ksc  0.0684          0.0617          0.0678          0.1077          0.1244
m1   0.314270832     0.203322432     0.156066862     0.228693106     0.287641797
m2   0.154436596254  0.354534430182  0.125176322684  0.184223727854  0.314032585456
p2u  0.042802541     0.067564011     0.06520304      0.081707271     0.042999249
u2ss 1.14220356012   1.38470169593   0.70038560703   1.38610897835   1.36318862639
""",
}

PATIENTS = tuple(f"{age}#{number:03}" for age in _TABLE for number in range(1, 6))


def _read_table() -> Parameters:
    numbers: dict[str, list[float]] = {}
    for block in _TABLE.values():
        for line in block.strip().splitlines():
            name, *row = line.split()
            numbers.setdefault(name, []).extend(map(float, row))
    return Parameters(**{name: np.array(row) for name, row in numbers.items()})


_PARAMETERS = _read_table()

# What has fallen below zero stays where it is. Effects of insulin (X, I1, Id) may be negative, and
# what was eaten cannot become so.
_FLOOR = np.full((13, 1), -np.inf)
_FLOOR[[3, 4, 5, 9, 10, 11, 12]] = 0.0


class GlucoseModel:
    """Thirteen compartments of N patients, as states [13, N].

    In the papers' names, with D what the last meal began on in the stomach plus what of it was
    eaten (mg), and ()+ the positive part:

        Qsto1' = meal − kmax·Qsto1                     stomach, solid (mg)
        Qsto2' = kmax·Qsto1 − kempt·Qsto2              stomach, liquid
        Qgut'  = kempt·Qsto2 − kabs·Qgut               gut
        Gp' = EGP + Ra − Fsnc − E − k1·Gp + k2·Gt      glucose in plasma (mg/kg)
        Gt' = −Uid + k1·Gp − k2·Gt                     glucose in tissue
        Ip' = −(m2 + m4)·Ip + m1·Il + ka1·Isc1 + ka2·Isc2    insulin in plasma (pmol/kg)
        X'  = p2u·(I − Ib − X)                         insulin's effect on uptake (pmol/l)
        I1' = ki·(I − I1),  Id' = ki·(I1 − Id)         insulin's delayed effect on the liver
        Il' = −(m1 + m30)·Il + m2·Ip                   insulin in the liver
        Isc1' = insulin − (ka1 + kd)·Isc1              insulin under the skin
        Isc2' = kd·Isc1 − ka2·Isc2
        Gs' = ksc·(Gp − Gs)                            glucose at the sensor

        kempt = kmin + (kmax − kmin)/2 · (tanh(5/(2(1 − b)D) · (Qsto − bD))
                                          − tanh(5/(2dD) · (Qsto − dD)) + 2)
        Qsto = Qsto1 + Qsto2,  Ra = f·kabs·Qgut/BW,  EGP = (kp1 − kp2·Gp − kp3·Id)+
        E = ke1·(Gp − ke2)+,  Uid = (Vm0 + Vmx·X)·Gt/(Km0 + Gt),  I = Ip/Vi
    """

    def __init__(self, patients: Sequence[int]) -> None:
        self.parameters = p = Parameters(*(row[list(patients)] for row in _PARAMETERS))
        self._emptying = (p.kmax - p.kmin) / 2.0
        self._appearance = F * p.kabs / p.BW
        self._plasma_out, self._liver_out = p.m2 + p.m4, p.m1 + p.m30
        self._depot_out = p.ka1 + p.kd

    def fasting(self) -> np.ndarray:
        """The state [13, N] in which nothing changes while u2ss is infused."""
        p = self.parameters
        plasma, insulin = p.Gb * p.Vg, p.Ib * p.Vi
        production = p.kp1 - p.kp2 * plasma - p.kp3 * p.Ib
        tissue = (p.k1 * plasma + FSNC - production) / p.k2
        liver = p.m2 * insulin / self._liver_out
        depot = p.u2ss / self._depot_out
        none = np.zeros_like(plasma)
        stomach, skin = [none, none, none], [depot, p.kd * depot / p.ka2]
        return np.stack([*stomach, plasma, tissue, insulin, none, p.Ib, p.Ib, liver, *skin, plasma])

    def sensed(self, state: np.ndarray) -> np.ndarray:
        """Glucose at the sensor, mg/dl."""
        return state[12] / self.parameters.Vg

    def slope(
        self, meal: np.ndarray, eaten: np.ndarray, insulin: np.ndarray, ended: np.ndarray
    ) -> Callable[[np.ndarray], np.ndarray]:
        """The states' time derivative as a function of the states, under inputs [N].

        `meal` is eaten per minute (mg), `eaten` is D, `insulin` is in pmol/kg per minute. Patients
        whose episode has ended stand still.
        """
        p = self.parameters
        high, low = p.b * eaten, p.d * eaten
        steep_high, steep_low = 2.5 / (eaten - high), 2.5 / low
        floor = np.where(ended, np.inf, _FLOOR)

        def derivative(state: np.ndarray) -> np.ndarray:
            qsto1, qsto2, qgut, gp, gt, ip, x, i1, id_, il, isc1, isc2, gs = state
            qsto = qsto1 + qsto2
            kempt = p.kmin + self._emptying * (
                np.tanh(steep_high * (qsto - high)) - np.tanh(steep_low * (qsto - low)) + 2.0
            )
            melted, emptied = p.kmax * qsto1, kempt * qsto2
            production = np.maximum(p.kp1 - p.kp2 * gp - p.kp3 * id_, 0.0)
            excretion = KE1 * np.maximum(gp - KE2, 0.0)
            exchange = p.k1 * gp - p.k2 * gt
            uptake = (p.Vm0 + p.Vmx * x) * gt / (p.Km0 + gt)
            i = ip / p.Vi
            out = np.empty_like(state)
            out[0] = meal - melted
            out[1] = melted - emptied
            out[2] = emptied - p.kabs * qgut
            out[3] = production + self._appearance * qgut - FSNC - excretion - exchange
            out[4] = exchange - uptake
            out[5] = p.m1 * il + p.ka1 * isc1 + p.ka2 * isc2 - self._plasma_out * ip
            out[6] = p.p2u * (i - p.Ib - x)
            out[7] = p.ki * (i - i1)
            out[8] = p.ki * (i1 - id_)
            out[9] = p.m2 * ip - self._liver_out * il
            out[10] = insulin - self._depot_out * isc1
            out[11] = p.kd * isc1 - p.ka2 * isc2
            out[12] = p.ksc * (gp - gs)
            out *= state >= floor
            return out

        return derivative
