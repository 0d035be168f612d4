"""The columns of heart.csv, the Cleveland part of the UCI data set *Heart Disease* as Keras' examples publish it."""

COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal",
    "target",
)  # fmt: skip

NUMBERS = {
    "age": (54.4, 9.0),
    "trestbps": (131.7, 17.6),
    "chol": (246.7, 51.8),
    "thalach": (149.6, 22.9),
    "oldpeak": (1.04, 1.16),
}
"""Mean and standard deviation: blood pressure, cholesterol, the highest heart rate, the ST depression."""

CODES = {"sex": 2, "cp": 5, "fbs": 2, "restecg": 3, "exang": 2, "slope": 4, "ca": 4}
"""Columns of integers that are no quantities, or have few values; and how many there are."""

THAL = ("fixed", "normal", "reversible")
"""The thallium stress test. Two rows of heart.csv have 1 and 2 there, which count as unknown."""
