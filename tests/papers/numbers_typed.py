"""The papers' numbers, taken from the papers' text and not from the recipes, in the layout of each table."""

from __future__ import annotations

import re

WSM_TABLE_1 = """
0.5   FedAvg     0.326±0.098  0.292±0.012  0.542±0.087
0.5   FedAvg+WSM 0.792±0.006  0.426±0.003  0.837±0.002
0.3   FedAvg     0.791±0.013  0.384±0.013  0.769±0.006
0.3   FedAvg+WSM 0.834±0.008  0.467±0.015  0.844±0.010
0.1   FedAvg     0.724±0.027  0.500±0.016  0.835±0.002
0.1   FedAvg+WSM 0.855±0.004  0.514±0.009  0.848±0.006
0.07  FedAvg     0.826±0.007  0.437±0.007  0.827±0.006
0.07  FedAvg+WSM 0.856±0.005  0.553±0.018  0.826±0.019
0.05  FedAvg     0.827±0.004  0.464±0.001  0.853±0.004
0.05  FedAvg+WSM 0.858±0.003  0.564±0.007  0.842±0.005
0.03  FedAvg     0.836±0.005  0.431±0.020  0.835±0.006
0.03  FedAvg+WSM 0.857±0.005  0.581±0.005  0.834±0.003
0.01  FedAvg     0.815±0.003  0.431±0.005  0.830±0.002
0.01  FedAvg+WSM 0.845±0.006  0.574±0.006  0.800±0.019
0.007 FedAvg     0.817±0.007  0.426±0.005  0.821±0.011
0.007 FedAvg+WSM 0.841±0.004  0.568±0.003  0.800±0.007
0.005 FedAvg     0.802±0.010  0.426±0.002  0.819±0.022
0.005 FedAvg+WSM 0.826±0.009  0.554±0.004  0.773±0.013
"""

WSM_TABLE_4 = """
0.5   group  FedAvg     0.326±0.098  0.292±0.012  0.542±0.087
0.5   group  FedAvg+WSM 0.452±0.173  0.234±0.191  0.418±0.177
0.5   batch  FedAvg     0.742±0.004  0.386±0.003  0.812±0.020
0.5   batch  FedAvg+WSM 0.792±0.006  0.426±0.003  0.837±0.002
0.3   group  FedAvg     0.791±0.013  0.384±0.013  0.769±0.006
0.3   group  FedAvg+WSM 0.744±0.007  0.388±0.027  0.761±0.118
0.3   batch  FedAvg     0.742±0.004  0.412±0.014  0.815±0.008
0.3   batch  FedAvg+WSM 0.834±0.008  0.467±0.015  0.844±0.010
0.1   group  FedAvg     0.724±0.027  0.500±0.016  0.835±0.002
0.1   group  FedAvg+WSM 0.794±0.022  0.446±0.004  0.827±0.012
0.1   batch  FedAvg     0.820±0.006  0.442±0.016  0.806±0.031
0.1   batch  FedAvg+WSM 0.855±0.004  0.514±0.009  0.848±0.006
0.07  group  FedAvg     0.826±0.007  0.437±0.007  0.827±0.006
0.07  group  FedAvg+WSM 0.805±0.007  0.484±0.041  0.823±0.006
0.07  batch  FedAvg     0.787±0.006  0.513±0.006  0.789±0.003
0.07  batch  FedAvg+WSM 0.856±0.005  0.553±0.018  0.826±0.019
0.05  group  FedAvg     0.827±0.004  0.464±0.001  0.853±0.004
0.05  group  FedAvg+WSM 0.791±0.019  0.454±0.015  0.841±0.002
0.05  batch  FedAvg     0.790±0.012  0.531±0.007  0.833±0.024
0.05  batch  FedAvg+WSM 0.858±0.003  0.564±0.007  0.842±0.005
0.03  group  FedAvg     0.836±0.005  0.431±0.020  0.835±0.006
0.03  group  FedAvg+WSM 0.774±0.035  0.472±0.007  0.830±0.006
0.03  batch  FedAvg     0.779±0.028  0.561±0.010  0.756±0.015
0.03  batch  FedAvg+WSM 0.857±0.005  0.581±0.005  0.834±0.003
0.01  group  FedAvg     0.815±0.003  0.431±0.005  0.830±0.002
0.01  group  FedAvg+WSM 0.785±0.011  0.471±0.010  0.800±0.018
0.01  batch  FedAvg     0.787±0.003  0.566±0.009  0.744±0.011
0.01  batch  FedAvg+WSM 0.845±0.006  0.574±0.006  0.800±0.019
0.007 group  FedAvg     0.817±0.007  0.426±0.005  0.821±0.011
0.007 group  FedAvg+WSM 0.773±0.014  0.476±0.010  0.794±0.006
0.007 batch  FedAvg     0.797±0.008  0.568±0.003  0.734±0.018
0.007 batch  FedAvg+WSM 0.841±0.004  0.568±0.003  0.800±0.007
0.005 group  FedAvg     0.802±0.010  0.426±0.002  0.819±0.022
0.005 group  FedAvg+WSM 0.768±0.019  0.474±0.006  0.781±0.017
0.005 batch  FedAvg     0.783±0.009  0.553±0.005  0.743±0.053
0.005 batch  FedAvg+WSM 0.826±0.009  0.554±0.004  0.773±0.013
"""

WSM_TABLE_5 = """
0.07  FedAvg     0.589±0.012  0.119±0.002
0.07  FedAvg+WSM 0.624±0.009  0.180±0.013
0.05  FedAvg     0.580±0.051  0.154±0.011
0.05  FedAvg+WSM 0.615±0.004  0.217±0.009
0.03  FedAvg     0.605±0.014  0.168±0.001
0.03  FedAvg+WSM 0.621±0.009  0.251±0.007
0.01  FedAvg     0.608±0.010  0.168±0.044
0.01  FedAvg+WSM 0.624±0.009  0.274±0.007
0.007 FedAvg     0.591±0.014  0.195±0.004
0.007 FedAvg+WSM 0.620±0.022  0.274±0.001
0.005 FedAvg     0.585±0.019  0.198±0.004
0.005 FedAvg+WSM 0.615±0.003  0.270±0.001
0.003 FedAvg     0.545±0.018  0.181±0.009
0.003 FedAvg+WSM 0.566±0.001  0.247±0.004
0.001 FedAvg     0.441±0.019  0.115±0.007
0.001 FedAvg+WSM 0.478±0.009  0.186±0.003
"""

FEDWAVG_TABLE_2 = """
10 1137 1148 55 73 90 84 103 93 60 79
20 1180 1185 63 38 38 57 66 57 47 60
30 1192 1197 34 22 39 32 45 36 28 39
40 1195 1189 22 12 24 25 29 27 23 22
50 1194 1196 21 8 22 17 27 24 19 22
100 1197 1129 0 1 0 1 2 0 3 5
"""

FEDWAVG_TABLE_3 = """
10 1188 1151 1180 1178 285 295 308 312 286 292
20 1191 1182 1182 1184 86 87 108 103 77 93
30 1194 1181 1191 1194 21 23 25 27 22 22
40 1186 1193 1181 1194 4 5 9 10 3 9
50 1189 1173 1183 1192 0 2 3 2 0 3
100 1121 1114 1130 1120 0 0 0 0 0 1
"""

FEDWAVG_TABLE_6 = """
100 1197 1129 0 1 0 1 2 0 3 5
200 1169 1164 0 0 0 0 0 0 0 0
300 1008 1012 0 0 0 0 0 0 0 0
400 1030 1023 0 0 0 0 0 0 0 0
500 1065 1063 0 0 0 0 0 0 0 0
"""

FEDWAVG_TABLE_7 = """
100 1200 1193 3 6 6 7 13 13 8 11
200 1170 1172 1 0 1 0 2 0 0 0
300 1185 1184 0 0 0 0 0 1 0 0
400 1190 1177 0 0 0 0 0 2 0 0
500 1157 1147 0 0 0 0 0 0 0 0
"""

FEDWAVG_TABLE_8 = """
100 1193 1196 5 3 0 2 3 0 1 3
200 527 514 3 7 1 3 4 5 4 4
300 644 672 3 1 1 1 2 1 0 1
400 461 463 2 2 1 4 1 3 5 3
500 504 496 4 6 7 5 2 1 3 3
"""

FEDWAVG_TABLE_4 = """
FedAvg         53.83  53.49  48.29  34.62
FedProx        70.60  57.89  73.83  59.14
SCAFFOLD       53.09  50.28  19.01  15.02
FedNova        56.33  52.25  42.11  32.21
FedWAvg (0.1)  57.27  50.31  72.91  37.16
FedWAvg (0.2)  76.07  54.60  87.37  63.84
FedWAvg (0.3)  92.37  65.55  88.47  67.00
"""

FEDWAVG_TABLE_5 = """
FedAvg         61.28  45.94  45.20  36.85
FedProx        48.35  46.32  46.55  39.52
SCAFFOLD       44.35  42.13  31.03  27.18
FedNova        54.53  50.79  48.03  39.44
FedWAvg (0.1)  68.55  49.38  70.85  41.56
FedWAvg (0.2)  51.80  46.26  74.70  50.92
FedWAvg (0.3)  80.83  50.07  75.27  51.69
"""

FEDWAVG_TABLE_1 = """
Centralized   4044   22,951   84,748   57,717
Federated     80,437   108,415   140,984   156,426
Increase (%)  1989   427   166   271
"""

IMPORTANCE_TABLE_1 = """
FedAvg   85.70  93.62  39.64  41.90
FedProx  85.57  93.67  40.78  42.05
Ours     89.19  95.08  39.89  42.88
"""

IMPORTANCE_TABLE_2 = """
FedAvg   91  88
FedProx  90  88
Ours     52  61
"""

IMPORTANCE_TABLE_3 = """
FedAvg                                  50.93  61.94  85.70  93.62
FedProx (FedAvg + L2)                   50.93  62.19  85.57  93.67
FedAvg + EWC                            54.38  64.42  85.88  93.65
FedAvg + weighted average               68.45  76.54  88.16  94.93
FedAvg + EWC + weighted average (ours)  70.25  78.11  89.19  95.08
"""

IMPORTANCE_TABLE_4 = """
EWC    89.19  95.08
RWalk  88.82  94.44
"""

WSM_TABLE_3 = """
FedAvg      0.608±0.010  0.198±0.004
FedAvg+WSM  0.624±0.009  0.274±0.007
"""

# Learning rate, then CIFAR-10, CIFAR-100 and FEMNIST, each for FedAvg, TCE with group norm, TCE with batch norm.
# A question mark: lost in the text.
TCE_TABLE_1 = """
0.7    NC NC 0.805±0.039                    NC NC 0.350±0.037                    NC NC 0.803
0.5    0.777±0.033 0.751±0.039 0.832±0.028  0.223±0.059 0.382±0.036 0.354±0.019  0.695 0.700 0.831
0.3    0.77±0.022 0.836±0.029 0.836±0.010   0.324±0.148 0.438±0.041 0.309±0.060  0.801 0.787 0.850
0.1    ? ? ?                                ? ? ?                                0.805 0.806 0.850
0.07   0.751±0.020 0.832±0.029 0.859±0.009  0.486±0.036 0.429±0.024 0.478±0.024  0.805 0.774 0.836
0.05   0.742±0.087 0.834±0.011 0.852±0.010  ? ? ?                                0.829 0.791 0.830
0.03   0.787±0.011 0.859±0.004 0.850±0.018  0.486±0.013 0.520±0.006 0.513±0.030  0.735 0.732 0.813
0.01   0.742±0.065 0.825±0.004 0.845±0.015  ? ? ?                                0.780 0.809 0.791
0.007  0.739±0.030 0.751±0.005 0.747±0.013  0.440±0.041 0.501±0.018 0.524±0.010  0.780 0.814 0.782
"""

# Best accuracy, then the learning rates within 2, 3 and 5 % of it.
TCE_TABLE_2 = """
CIFAR-10
FedAvg              0.796 ; 0.1, 0.03 ; 0.3, 0.1, 0.03 ; 0.3, 0.1, 0.07, 0.03
FedAvg+TCE (group)  0.860 ; 0.1, 0.03 ; 0.3, 0.1, 0.07, 0.05, 0.03 ; 0.3, 0.1, 0.07, 0.05, 0.03, 0.01
FedAvg+TCE (batch)  0.859 ; 0.1, 0.07, 0.05, 0.01 ; 0.3, 0.1, 0.07, 0.05, 0.01 ; 0.3, 0.1, 0.07, 0.05, 0.01
CIFAR-100
FedAvg              0.486 ; 0.07 ; 0.07, 0.03 ; 0.07, 0.05, 0.03, 0.007
FedAvg+TCE (group)  0.524 ; 0.01 ; 0.05, 0.03, 0.01, 0.007 ; 0.05, 0.03, 0.01, 0.007
FedAvg+TCE (batch)  0.524 ; 0.05, 0.03, 0.007 ; 0.05, 0.03, 0.007 ; 0.07, 0.05, 0.03, 0.01, 0.007
FEMNIST
FedAvg              0.850 ; 0.05 ; 0.05, 0.07, 0.1, 0.3 ; 0.007, 0.01, 0.05, 0.07, 0.1, 0.3
FedAvg+TCE (group)  0.814 ; 0.007, 0.01, 0.1 ; 0.007, 0.01, 0.05, 0.07, 0.1, 0.3 ; 0.007, 0.01, 0.05, 0.07, 0.1, 0.3
FedAvg+TCE (batch)  0.850 ; 0.05, 0.07, 0.1, 0.3, 0.5 ; 0.05, 0.07, 0.1, 0.3, 0.5 ; 0.05, 0.07, 0.1, 0.3, 0.5, 0.7
"""

SETS = ("CIFAR-10", "CIFAR-100", "FEMNIST")

Number = tuple[float | None, float | None, str]  # value, spread, text
Numbers = dict[tuple[str, str], Number]


def _number(text: str) -> Number:
    if not re.match(r"\d", text):
        return None, None, text
    value, _, spread = text.replace(",", "").partition("±")
    return float(value), float(spread) if spread else None, ""


def _lines(table: str) -> list[str]:
    return table.strip().splitlines()


def _plain(table: str, columns: tuple[str, ...]) -> Numbers:
    """A name, then as many numbers as there are columns."""
    found = {}
    for line in _lines(table):
        words = line.split()
        name, numbers = " ".join(words[: -len(columns)]), words[-len(columns) :]
        found |= {(name, column): _number(text) for column, text in zip(columns, numbers, strict=True)}
    return found


def _by_rate(table: str, with_norm: bool, columns: tuple[str, ...]) -> Numbers:
    found = {}
    for line in _lines(table):
        rate, *words = line.split()
        norm = f", norm={words.pop(0)}" if with_norm else ""
        name = f"{words.pop(0)}, lr={rate}{norm}"
        found |= {(name, column): _number(text) for column, text in zip(columns, words, strict=True)}
    return found


def _counts(minority: int, **tables: str) -> Numbers:
    found = {}
    for method, table in tables.items():
        for line in _lines(table):
            number, *counts = line.split()
            for place, count in enumerate(counts):
                client = f"Minor{place + 1}" if place < minority else f"Major{place + 1 - minority}"
                found[f"{method}, round {number}", client] = _number(count)
    return found


def _tce_table_1() -> Numbers:
    found = {}
    for line in _lines(TCE_TABLE_1):
        rate, *words = line.split()
        for place, text in enumerate(words):
            method = ("FedAvg", "FedAvg+TCE (group)", "FedAvg+TCE (batch)")[place % 3]
            if text != "?":
                found[f"{method}, lr={rate}", SETS[place // 3]] = _number(text)
    return found


def _tce_table_2() -> Numbers:
    found, data = {}, ""
    for line in _lines(TCE_TABLE_2):
        if ";" not in line:
            data = line.strip()
            continue
        first, *lists = line.split(";")
        name, best = first.rsplit(maxsplit=1)
        found[name.strip(), f"{data}, best"] = _number(best)
        for points, rates in zip((2, 3, 5), lists, strict=True):
            found[name.strip(), f"{data}, within {points} %"] = (float(len(rates.split(","))), None, "")
    return found


TOP_AND_AVERAGE = ("2:7 Top", "2:7 Average", "2:3:4 Top", "2:3:4 Average")

TYPED: dict[str, Numbers] = {
    "fedwavg/table1": _plain(FEDWAVG_TABLE_1, ("MNIST", "FMNIST", "SVHN", "CIFAR-10")),
    "fedwavg/table2": _counts(2, FedAvg=FEDWAVG_TABLE_2),
    "fedwavg/table3": _counts(4, FedAvg=FEDWAVG_TABLE_3),
    "fedwavg/table4": _plain(FEDWAVG_TABLE_4, TOP_AND_AVERAGE),
    "fedwavg/table5": _plain(FEDWAVG_TABLE_5, TOP_AND_AVERAGE),
    "fedwavg/table6": _counts(2, FedAvg=FEDWAVG_TABLE_6, FedProx=FEDWAVG_TABLE_7, FedWAvg=FEDWAVG_TABLE_8),
    # Sec. 6: "FedAvg's performance swings around 50% and FedProx's performance is stuck between 50 and 60%, FedWAvg's
    # performance is around 70% and higher"; "the difference is less than 10%"
    "fedwavg/figure2": {
        ("FedAvg", "CIFAR-10"): (None, None, "around 50"),
        ("FedProx", "CIFAR-10"): (None, None, "50 to 60"),
        ("FedWAvg", "CIFAR-10"): (None, None, "around 70 and higher"),
    },
    "fedwavg/figure3": {("FedWAvg, classifier frozen", "CIFAR-10"): (None, None, "better by less than 10")},
    "fedwagg/figure1": {},
    "fedwagg/figure2": {},
    "wsm/table1": _by_rate(WSM_TABLE_1, False, SETS),
    "wsm/table2": {},
    "wsm/table3": _plain(WSM_TABLE_3, SETS[:2]),
    "wsm/table4": _by_rate(WSM_TABLE_4, True, SETS),
    "wsm/table5": _by_rate(WSM_TABLE_5, False, SETS[:2]),
    "wsm/figure2": {},
    "wsm/figure3": {},
    "wsm/figure4": {},
    "wsm/figure5": {},
    "wsm/figure6": {},
    # A.4: "we can improve the performance by 9.5% at no additional cost"
    "wsm/a4": {
        ("FedAvg+WSM", "ResNet-18, gain"): (9.5, None, ""),
        ("FedAvg+WSM", "gain"): (9.5, None, ""),
    },
    "importance/table1": _plain(IMPORTANCE_TABLE_1, ("MNIST MLP", "MNIST CNN", "CIFAR-10 MLP", "CIFAR-10 CNN")),
    "importance/table2": _plain(IMPORTANCE_TABLE_2, ("MLP (85%)", "CNN (93%)")),
    "importance/table3": _plain(
        IMPORTANCE_TABLE_3, ("10 rounds, MLP", "10 rounds, CNN", "100 rounds, MLP", "100 rounds, CNN")
    ),
    "importance/table4": _plain(IMPORTANCE_TABLE_4, ("MLP", "CNN")),
    "importance/figure2": {},
    "tce/table1": _tce_table_1(),
    "tce/table2": _tce_table_2(),
    "tce/figure2": {},
    "tce/figure3": {},
    "tce/figure4": {},
}
