"""Facts about the world that Kindling is taught, as tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Country:
    name: str
    capital: str
    continent: str
    currency: str
    language: str | None  # None if no single language is the answer


COUNTRIES = tuple(
    Country(*row)
    for row in (
        ("France", "Paris", "Europe", "euro", "French"),
        ("Germany", "Berlin", "Europe", "euro", "German"),
        ("Italy", "Rome", "Europe", "euro", "Italian"),
        ("Spain", "Madrid", "Europe", "euro", "Spanish"),
        ("Portugal", "Lisbon", "Europe", "euro", "Portuguese"),
        ("Austria", "Vienna", "Europe", "euro", "German"),
        ("Belgium", "Brussels", "Europe", "euro", None),
        ("the Netherlands", "Amsterdam", "Europe", "euro", "Dutch"),
        ("Ireland", "Dublin", "Europe", "euro", None),
        ("Greece", "Athens", "Europe", "euro", "Greek"),
        ("Finland", "Helsinki", "Europe", "euro", None),
        ("Estonia", "Tallinn", "Europe", "euro", "Estonian"),
        ("Latvia", "Riga", "Europe", "euro", "Latvian"),
        ("Lithuania", "Vilnius", "Europe", "euro", "Lithuanian"),
        ("Slovakia", "Bratislava", "Europe", "euro", "Slovak"),
        ("Slovenia", "Ljubljana", "Europe", "euro", "Slovene"),
        ("Croatia", "Zagreb", "Europe", "euro", "Croatian"),
        ("Malta", "Valletta", "Europe", "euro", None),
        ("the United Kingdom", "London", "Europe", "pound", "English"),
        ("Norway", "Oslo", "Europe", "krone", "Norwegian"),
        ("Sweden", "Stockholm", "Europe", "krona", "Swedish"),
        ("Denmark", "Copenhagen", "Europe", "krone", "Danish"),
        ("Iceland", "Reykjavik", "Europe", "krona", "Icelandic"),
        ("Poland", "Warsaw", "Europe", "zloty", "Polish"),
        ("the Czech Republic", "Prague", "Europe", "koruna", "Czech"),
        ("Hungary", "Budapest", "Europe", "forint", "Hungarian"),
        ("Romania", "Bucharest", "Europe", "leu", "Romanian"),
        ("Serbia", "Belgrade", "Europe", "dinar", "Serbian"),
        ("Albania", "Tirana", "Europe", "lek", "Albanian"),
        ("Ukraine", "Kyiv", "Europe", "hryvnia", "Ukrainian"),
        ("Switzerland", "Bern", "Europe", "franc", None),
        ("Russia", "Moscow", "Europe", "ruble", "Russian"),
        ("Turkey", "Ankara", "Asia", "lira", "Turkish"),
        ("China", "Beijing", "Asia", "yuan", "Chinese"),
        ("Japan", "Tokyo", "Asia", "yen", "Japanese"),
        ("South Korea", "Seoul", "Asia", "won", "Korean"),
        ("Mongolia", "Ulaanbaatar", "Asia", "tugrik", "Mongolian"),
        ("India", "New Delhi", "Asia", "rupee", None),
        ("Pakistan", "Islamabad", "Asia", "rupee", "Urdu"),
        ("Nepal", "Kathmandu", "Asia", "rupee", "Nepali"),
        ("Bangladesh", "Dhaka", "Asia", "taka", "Bengali"),
        ("Thailand", "Bangkok", "Asia", "baht", "Thai"),
        ("Vietnam", "Hanoi", "Asia", "dong", "Vietnamese"),
        ("Laos", "Vientiane", "Asia", "kip", "Lao"),
        ("Cambodia", "Phnom Penh", "Asia", "riel", "Khmer"),
        ("Malaysia", "Kuala Lumpur", "Asia", "ringgit", "Malay"),
        ("the Philippines", "Manila", "Asia", "peso", None),
        ("Iran", "Tehran", "Asia", "rial", "Persian"),
        ("Iraq", "Baghdad", "Asia", "dinar", None),
        ("Saudi Arabia", "Riyadh", "Asia", "riyal", "Arabic"),
        ("Jordan", "Amman", "Asia", "dinar", "Arabic"),
        ("Lebanon", "Beirut", "Asia", "pound", "Arabic"),
        ("Qatar", "Doha", "Asia", "riyal", "Arabic"),
        ("Oman", "Muscat", "Asia", "rial", "Arabic"),
        ("Kazakhstan", "Astana", "Asia", "tenge", "Kazakh"),
        ("Uzbekistan", "Tashkent", "Asia", "som", "Uzbek"),
        ("Armenia", "Yerevan", "Asia", "dram", "Armenian"),
        ("Georgia", "Tbilisi", "Asia", "lari", "Georgian"),
        ("Egypt", "Cairo", "Africa", "pound", "Arabic"),
        ("Morocco", "Rabat", "Africa", "dirham", None),
        ("Algeria", "Algiers", "Africa", "dinar", None),
        ("Tunisia", "Tunis", "Africa", "dinar", "Arabic"),
        ("Libya", "Tripoli", "Africa", "dinar", "Arabic"),
        ("Ethiopia", "Addis Ababa", "Africa", "birr", "Amharic"),
        ("Kenya", "Nairobi", "Africa", "shilling", None),
        ("Uganda", "Kampala", "Africa", "shilling", None),
        ("Tanzania", "Dodoma", "Africa", "shilling", "Swahili"),
        ("Rwanda", "Kigali", "Africa", "franc", None),
        ("Ghana", "Accra", "Africa", "cedi", "English"),
        ("Nigeria", "Abuja", "Africa", "naira", "English"),
        ("Senegal", "Dakar", "Africa", "franc", "French"),
        ("Mali", "Bamako", "Africa", "franc", None),
        ("Angola", "Luanda", "Africa", "kwanza", "Portuguese"),
        ("Zambia", "Lusaka", "Africa", "kwacha", "English"),
        ("Namibia", "Windhoek", "Africa", "dollar", "English"),
        ("Botswana", "Gaborone", "Africa", "pula", None),
        ("Mozambique", "Maputo", "Africa", "metical", "Portuguese"),
        ("the United States", "Washington", "North America", "dollar", "English"),
        ("Canada", "Ottawa", "North America", "dollar", None),
        ("Mexico", "Mexico City", "North America", "peso", "Spanish"),
        ("Cuba", "Havana", "North America", "peso", "Spanish"),
        ("Jamaica", "Kingston", "North America", "dollar", "English"),
        ("Honduras", "Tegucigalpa", "North America", "lempira", "Spanish"),
        ("Nicaragua", "Managua", "North America", "cordoba", "Spanish"),
        ("Costa Rica", "San Jose", "North America", "colon", "Spanish"),
        ("Brazil", "Brasilia", "South America", "real", "Portuguese"),
        ("Argentina", "Buenos Aires", "South America", "peso", "Spanish"),
        ("Chile", "Santiago", "South America", "peso", "Spanish"),
        ("Peru", "Lima", "South America", "sol", "Spanish"),
        ("Colombia", "Bogota", "South America", "peso", "Spanish"),
        ("Venezuela", "Caracas", "South America", "bolivar", "Spanish"),
        ("Uruguay", "Montevideo", "South America", "peso", "Spanish"),
        ("Australia", "Canberra", "Oceania", "dollar", "English"),
        ("New Zealand", "Wellington", "Oceania", "dollar", None),
        ("Fiji", "Suva", "Oceania", "dollar", None),
    )
)

# category: (plural, members)
CATEGORIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "fruit": (
        "fruits",
        ("apple", "banana", "cherry", "grape", "lemon", "mango", "orange", "peach", "pear", "plum"),
    ),
    "vegetable": (
        "vegetables",
        ("bean", "cabbage", "carrot", "garlic", "leek", "onion", "pea", "potato", "radish", "spinach"),
    ),
    "mammal": ("mammals", ("bear", "cat", "cow", "dog", "fox", "goat", "horse", "lion", "mouse", "wolf")),
    "bird": ("birds", ("crow", "duck", "eagle", "hawk", "owl", "parrot", "pigeon", "robin", "sparrow", "swan")),
    "fish": ("fish", ("carp", "cod", "eel", "herring", "perch", "pike", "salmon", "trout", "tuna")),
    "insect": ("insects", ("ant", "bee", "beetle", "butterfly", "cricket", "fly", "mosquito", "moth", "wasp")),
    "flower": ("flowers", ("daisy", "iris", "lily", "orchid", "poppy", "rose", "sunflower", "tulip", "violet")),
    "tree": ("trees", ("ash", "beech", "birch", "cedar", "elm", "fir", "maple", "oak", "pine", "willow")),
    "metal": ("metals", ("aluminium", "copper", "gold", "iron", "lead", "nickel", "silver", "tin", "zinc")),
    "colour": ("colours", ("black", "blue", "brown", "green", "grey", "pink", "purple", "red", "white", "yellow")),
    "instrument": ("instruments", ("cello", "drum", "flute", "guitar", "harp", "piano", "trumpet", "violin")),
    "vehicle": ("vehicles", ("bicycle", "boat", "bus", "car", "ferry", "lorry", "ship", "train", "tram")),
    "tool": ("tools", ("axe", "chisel", "drill", "hammer", "rake", "saw", "spade", "wrench")),
    "drink": ("drinks", ("coffee", "cocoa", "juice", "lemonade", "milk", "tea", "water", "wine")),
    "sport": ("sports", ("boxing", "football", "golf", "hockey", "rowing", "rugby", "tennis", "volleyball")),
    "shape": ("shapes", ("circle", "cone", "cube", "oval", "rectangle", "sphere", "square", "triangle")),
    "garment": ("garments", ("coat", "dress", "glove", "hat", "jacket", "scarf", "shirt", "skirt", "sock")),
    "science": ("sciences", ("astronomy", "biology", "botany", "chemistry", "geology", "physics", "zoology")),
}

# name of the list: (what it lists, items in order, whether the last is followed by the first)
ORDERED: dict[str, tuple[str, tuple[str, ...], bool]] = {
    "day": (
        "days of the week",
        ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
        True,
    ),
    "month": (
        "months of the year",
        (
            *("January", "February", "March", "April", "May", "June"),
            *("July", "August", "September", "October", "November", "December"),
        ),
        True,
    ),
    "season": ("seasons of the year", ("spring", "summer", "autumn", "winter"), True),
    "planet": (
        "planets of the solar system",
        ("Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune"),
        False,
    ),
    "letter": ("letters of the alphabet", tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), False),
    "rainbow colour": (
        "colours of the rainbow",
        ("red", "orange", "yellow", "green", "blue", "indigo", "violet"),
        False,
    ),
}

UNORDERED: dict[str, tuple[str, ...]] = {
    "continents of the world": (
        *("Africa", "Antarctica", "Asia", "Europe"),
        *("North America", "Oceania", "South America"),
    ),
    "oceans of the world": ("Arctic", "Atlantic", "Indian", "Pacific", "Southern"),
    "points of the compass": ("north", "east", "south", "west"),
    "senses of the body": ("sight", "hearing", "smell", "taste", "touch"),
    "vowels of the alphabet": ("A", "E", "I", "O", "U"),
    "primary colours of paint": ("red", "yellow", "blue"),
    "states of matter": ("solid", "liquid", "gas"),
    "fingers of the hand": ("thumb", "index finger", "middle finger", "ring finger", "little finger"),
}

OPPOSITES = (
    *(("hot", "cold"), ("big", "small"), ("fast", "slow"), ("high", "low"), ("old", "new"), ("wet", "dry")),
    *(("open", "closed"), ("full", "empty"), ("light", "dark"), ("early", "late"), ("hard", "soft")),
    *(("rich", "poor"), ("strong", "weak"), ("long", "short"), ("wide", "narrow"), ("clean", "dirty")),
    *(("happy", "sad"), ("near", "far"), ("loud", "quiet"), ("true", "false"), ("thick", "thin")),
    *(("deep", "shallow"), ("heavy", "weightless"), ("sharp", "blunt"), ("left", "right"), ("up", "down")),
)


@dataclass(frozen=True, slots=True)
class Unit:
    big: str  # plural
    small: str  # plural
    factor: int


UNITS = tuple(
    Unit(*row)
    for row in (
        ("kilometres", "metres", 1000),
        ("metres", "centimetres", 100),
        ("metres", "millimetres", 1000),
        ("centimetres", "millimetres", 10),
        ("kilograms", "grams", 1000),
        ("tonnes", "kilograms", 1000),
        ("grams", "milligrams", 1000),
        ("litres", "millilitres", 1000),
        ("litres", "centilitres", 100),
        ("euros", "cents", 100),
        ("kilowatts", "watts", 1000),
        ("decades", "years", 10),
        ("centuries", "years", 100),
        ("minutes", "seconds", 60),
        ("hours", "minutes", 60),
        ("weeks", "days", 7),
        ("dozens", "items", 12),
        ("years", "months", 12),
        ("feet", "inches", 12),
        ("yards", "feet", 3),
        ("pairs", "items", 2),
    )
)
