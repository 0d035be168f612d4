"""The columns of the UCI data set *Adult* (Census Income, 1994), and what is known about them beforehand.

Vocabularies and moments are written here, so that every worker has the same ones and no pass over the data is needed.
"""

COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship", "race",
    "sex", "capital_gain", "capital_loss", "hours_per_week", "native_country", "income",
)  # fmt: skip
"""In the order of the published file, which does not name them. `fnlwgt` is a weight of the survey, not a feature."""

NUMBERS = {
    "age": (38.6, 13.6, False),
    "education_num": (10.1, 2.6, False),
    "capital_gain": (0.7, 2.5, True),
    "capital_loss": (0.4, 1.6, True),
    "hours_per_week": (40.4, 12.3, False),
}
"""Mean, standard deviation, and whether both are of the logarithm of 1 + x."""

WORDS = {
    "workclass": (
        "Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov", "Local-gov", "State-gov", "Without-pay",
        "Never-worked",
    ),
    "education": (
        "Preschool", "1st-4th", "5th-6th", "7th-8th", "9th", "10th", "11th", "12th", "HS-grad", "Some-college",
        "Assoc-voc", "Assoc-acdm", "Bachelors", "Masters", "Prof-school", "Doctorate",
    ),
    "marital_status": (
        "Married-civ-spouse", "Divorced", "Never-married", "Separated", "Widowed", "Married-spouse-absent",
        "Married-AF-spouse",
    ),
    "occupation": (
        "Tech-support", "Craft-repair", "Other-service", "Sales", "Exec-managerial", "Prof-specialty",
        "Handlers-cleaners", "Machine-op-inspct", "Adm-clerical", "Farming-fishing", "Transport-moving",
        "Priv-house-serv", "Protective-serv", "Armed-Forces",
    ),
    "relationship": ("Wife", "Own-child", "Husband", "Not-in-family", "Other-relative", "Unmarried"),
    "race": ("White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black"),
    "sex": ("Female", "Male"),
    "native_country": ("United-States", "Mexico", "Philippines", "Germany", "Canada", "Puerto-Rico", "India", "Cuba"),
}  # fmt: skip
"""The words of each column; of the 41 countries, the frequent ones. All others, and `?`, share one index."""
