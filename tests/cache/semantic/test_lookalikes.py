"""Families of questions that are near and need different answers, and of questions that say the same.

The similarity is given, .99 for look-alikes: nearer than any real vector would have them.
"""

import pytest

from cache.semantic.verifier import NEIGHBOURS, Candidate, verify

LOOKALIKES = {
    "on and off": [
        ("How do I turn on the heated mirrors?", "How do I turn off the heated mirrors?"),
        ("turn the kitchen light on", "turn the kitchen light off"),
        ("Is the alarm on?", "Is the alarm off?"),
        ("How do I enable dark mode?", "How do I disable dark mode?"),
    ],
    "safe and unsafe": [
        ("Why is it safe to eat raw eggs?", "Why is it unsafe to eat raw eggs?"),
        ("Is this mushroom safe?", "Is this mushroom dangerous?"),
        ("Which plants are healthy for cats?", "Which plants are unhealthy for cats?"),
    ],
    "counts": [
        ("What are the 2 largest moons?", "What are the 3 largest moons?"),
        ("Give me two ideas for dinner", "Give me three ideas for dinner"),
        ("What is twenty five times 4?", "What is twenty six times 4?"),
        ("Write an essay of 200 words on bees", "Write an essay of 2,000 words on bees"),
        ("How do I win the first level?", "How do I win the second level?"),
    ],
    "direction": [
        ("How far is it from Berlin to Madrid?", "How far is it from Madrid to Berlin?"),
        ("convert euros to dollars", "convert dollars to euros"),
        ("How many euros do I get for one of the dollars?", "How many dollars do I get for one of the euros?"),
        ("Translate this from French to German", "Translate this from German to French"),
        ("Convert JSON into YAML", "Convert YAML into JSON"),
        ("Should I install Java after Python?", "Should I install Python after Java?"),
    ],
    "who does what to whom": [
        ("Does Alice manage Bob?", "Does Bob manage Alice?"),
        ("Can a dog bite a cat?", "Can a cat bite a dog?"),
        ("Is Mars bigger than Earth?", "Is Earth bigger than Mars?"),
        ("What did Lincoln write to Grant?", "What did Grant write to Lincoln?"),
    ],
    "names": [
        ("Who is the mayor of Leeds?", "Who is the mayor of York?"),
        ("How do I mute a call in Zoom?", "How do I mute a call in Skype?"),
        ("Who directed Alien?", "Who directed Aliens?"),
        ("what is the population of peru", "what is the population of chile"),
        ("Tell me about Michael Jordan", "Tell me about Michael Jackson"),
    ],
    "dates": [
        ("What happened on 4 July 1776?", "What happened on 4 July 1777?"),
        ("Is the office open on Monday?", "Is the office open on Tuesday?"),
        ("What is in season in May?", "What is in season in June?"),
        ("Are you open on Christmas?", "Are you open on Easter?"),
        ("Deliver it on 2026-03-01", "Deliver it on 2026-03-11"),
    ],
    "times": [
        ("Wake me at 5 am", "Wake me at 5 pm"),
        ("Is there a train at 17:30?", "Is there a train at 17:45?"),
        ("Is the pool open in the morning?", "Is the pool open in the evening?"),
    ],
    "currencies": [
        ("What is $100 in yen?", "What is €100 in yen?"),
        ("How much is a big mac in pounds?", "How much is a big mac in francs?"),
        ("Do you accept dollars?", "Do you accept euros?"),
    ],
    "units": [
        ("How much is 5 kg of flour in cups?", "How much is 5 lb of flour in cups?"),
        ("How long is a marathon in miles?", "How long is a marathon in kilometers?"),
        ("Is 30 celsius hot?", "Is 30 fahrenheit hot?"),
        ("What is 10MB?", "What is 10GB?"),
    ],
    "versions": [
        ("What is new in Python 3.11?", "What is new in Python 3.12?"),
        ("Does iPhone 14 have USB-C?", "Does iPhone 15 have USB-C?"),
        ("How do I install v2 of the API?", "How do I install v3 of the API?"),
    ],
    "languages": [
        ("Say good morning in Spanish", "Say good morning in Italian"),
        ("How do I reverse a list in Python?", "How do I reverse a list in JavaScript?"),
        ("How do I read a file in Java?", "How do I read a file in Rust?"),
        ("hello world in go please", "hello world in ruby please"),
    ],
    "formats": [
        ("Give me the list as JSON", "Give me the list as CSV"),
        ("Write a haiku about rain", "Write a sonnet about rain"),
        ("Answer in bullet points: why do we sleep?", "Answer in a table: why do we sleep?"),
    ],
    "manner": [
        ("Write a formal apology to a customer", "Write a friendly apology to a customer"),
        ("Give me a short summary of Hamlet", "Give me a detailed summary of Hamlet"),
    ],
    "negation": [
        ("What should I include in a cover letter?", "What should I not include in a cover letter?"),
        ("Which foods contain gluten?", "Which foods don't contain gluten?"),
        ("Why can I log in?", "Why can't I log in?"),
        ("Should you never wake a sleepwalker?", "Should you wake a sleepwalker?"),
    ],
    "more and less": [
        ("How do I earn more points?", "How do I earn fewer points?"),
        ("Why does it use more memory?", "Why does it use less memory?"),
        ("What is the maximum dose?", "What is the minimum dose?"),
        ("Which is the cheapest plan?", "Which is the most expensive plan?"),
    ],
    "before and after": [
        ("Should I stretch before running?", "Should I stretch after running?"),
        ("Is it better to eat before a swim?", "Is it better to eat after a swim?"),
    ],
    "with and without": [
        ("Can I travel with a passport?", "Can I travel without a passport?"),
        ("pancakes with eggs", "pancakes without eggs"),
    ],
    "scope": [
        ("How do I return a gift?", "How do I return a gift card?"),
        ("Can I cancel my order?", "Can I cancel part of my order?"),
        ("Does the warranty cover the battery?", "Does the extended warranty cover the battery?"),
        ("What does shipping cost?", "What does international shipping cost?"),
        ("How do I renew my adult passport?", "How do I renew my child passport?"),
    ],
    "what is asked": [
        ("When was Rome founded?", "Why was Rome founded?"),
        ("Where is the parcel?", "When is the parcel?"),
        ("How old is the tower?", "How tall is the tower?"),
    ],
    "actions": [
        ("How do I start a container?", "How do I restart a container?"),
        ("How do I upload a file?", "How do I download a file?"),
        ("Can I buy shares here?", "Can I sell shares here?"),
    ],
    "templates": [
        (
            "Classify the sentiment of the following review as good or bad: the soup was cold",
            "Classify the sentiment of the following review as good or bad: the cake was lovely",
        ),
        (
            "You are a careful editor. Correct spelling and grammar in this text and keep its tone: we was late",
            "You are a careful editor. Correct spelling and grammar in this text and keep its tone: she don't care",
        ),
        (
            "Translate the following sentence and explain every word you choose: cats sleep",
            "Translate the following sentence and explain every word you choose: dogs bark",
        ),
    ],
    "quoted and code": [
        ("What does `git reset --hard` do?", "What does `git reset --soft` do?"),
        ("Which strings match `[A-Z]+`?", "Which strings match `[a-z]+`?"),
        ('How do I fix "index out of range"?', 'How do I fix "list out of range"?'),
        ("What does foo(a, b) return?", "What does foo(b, a) return?"),
        ("Is user_id unique?", "Is user_name unique?"),
    ],
    "arithmetic": [
        ("What is 7 + 3?", "What is 7 - 3?"),
        ("What is 7 * 3?", "What is 7 + 3?"),
        ("Is 2 < 3?", "Is 2 > 3?"),
    ],
    "signs": [("What does 👍 mean?", "What does 👎 mean?"), ("♥", "♣")],
    "German": [
        ("Wie kündige ich meinen Vertrag?", "Wie verlängere ich meinen Vertrag?"),
        ("Wie schalte ich das Licht ein?", "Wie schalte ich das Licht aus?"),
        ("Ist das Wasser trinkbar?", "Ist das Wasser nicht trinkbar?"),
        ("Wie weit ist es von Köln nach Bonn?", "Wie weit ist es von Bonn nach Köln?"),
    ],
    "French": [
        ("Comment activer le mode sombre ?", "Comment désactiver le mode sombre ?"),
        ("Puis-je voyager avec un passeport ?", "Puis-je voyager sans un passeport ?"),
        ("Quelle est la capitale du Pérou ?", "Quelle est la capitale du Chili ?"),
        ("un train de Lyon à Nice", "un train de Nice à Lyon"),
    ],
    "Spanish": [
        ("¿Cómo abro una cuenta?", "¿Cómo cierro una cuenta?"),
        ("¿Está abierto el lunes?", "¿Está abierto el martes?"),
        ("¿Es seguro comer esto?", "¿No es seguro comer esto?"),
    ],
    "Chinese": [
        ("从北京到上海怎么走", "从上海到北京怎么走"),
        ("如何打开通知", "如何关闭通知"),
        ("这个安全吗", "这个不安全吗"),
        ("我要2张票", "我要3张票"),
    ],
    "Japanese": [
        ("電気をつけてください", "電気をけしてください"),
        ("東京から大阪まで", "大阪から東京まで"),
        ("これは食べられますか", "これは食べられませんか"),
    ],
    "Russian": [
        ("Как включить звук?", "Как выключить звук?"),
        ("Это безопасно?", "Это не безопасно?"),
        ("поезд из Москвы в Казань", "поезд из Казани в Москву"),
    ],
    "Arabic": [
        ("كيف أفتح حسابا", "كيف أغلق حسابا"),
        ("أريد ٢ تذاكر", "أريد ٣ تذاكر"),
        ("من الرباط إلى فاس", "من فاس إلى الرباط"),
    ],
}

SAME = [
    ("How do I reset my password?", "Hi, how can I reset my password please?", 0.9),
    ("What is the capital of France?", "What's France's capital?", 0.9),
    ("How do I turn off notifications?", "How can I switch off notifications?", 0.88),
    ("How do I turn off the light?", "How do I turn the light off?", 0.95),
    ("what time does the pool open", "What time does the pool open?", 0.98),
    ("Give me 3 ideas for dinner", "Give me three ideas for dinner, thanks", 0.95),
    ("How many calories are in an avocado?", "How many calories does an avocado have?", 0.93),
    ("How far is it from Berlin to Madrid?", "How far from Berlin to Madrid?", 0.93),
    ("Who was president of the United States in 2011?", "Who was the president of the USA in 2011?", 0.93),
    ("What does `git merge` do?", "what does git merge do", 0.95),
    ("How do I cancel my subscription?", "How can I cancle my subscription?", 0.9),
    ("What is 1,000 divided by 8?", "What is 1000 divided by 8?", 0.95),
    ("Who painted the Mona Lisa?", "who painted the mona lisa??", 0.97),
    ("Wie kündige ich meinen Vertrag?", "wie kündige ich meinen vertrag", 0.97),
    ("如何打开通知", "如何打开通知？", 0.97),
    ("Как включить звук?", "как включить звук", 0.97),
]

PAIRS = [(family, a, b) for family, pairs in LOOKALIKES.items() for a, b in pairs]


@pytest.mark.parametrize(("family", "a", "b"), PAIRS)
def test_no_hit_where_it_is_the_only_neighbour(family: str, a: str, b: str) -> None:
    for asked, stored in ((a, b), (b, a)):
        verdict = verify(asked, [Candidate(stored, 0.99, 1)])
        assert verdict.chosen is None, (family, asked, stored, verdict)
        assert verdict.reason not in ("", "similarity")


@pytest.mark.parametrize(("family", "a", "b"), PAIRS)
def test_no_hit_where_nothing_else_is_near(family: str, a: str, b: str) -> None:
    """The most that a margin can give."""
    far = [Candidate(f"something else, number {n}", 0.1, n) for n in range(NEIGHBOURS - 1)]
    for asked, stored in ((a, b), (b, a)):
        assert verify(asked, [Candidate(stored, 0.99, "x"), *far]).chosen is None, (family, asked, stored)


@pytest.mark.parametrize(("family", "a", "b"), PAIRS)
def test_no_hit_where_wordings_of_the_other_fill_the_neighbourhood(family: str, a: str, b: str) -> None:
    """The most that votes can give: the other question in eight wordings, all with its answer."""
    frames = ("{}", "hi, {}", "{} please", "{} thanks", "please: {}", "hello! {}", "{} thank you", "hey, {}")
    for asked, stored in ((a, b), (b, a)):
        around = [Candidate(frame.format(stored), 0.99 - n / 100, 1) for n, frame in enumerate(frames)]
        assert verify(asked, around).chosen is None, (family, asked, stored)


@pytest.mark.parametrize(("a", "b", "similarity"), SAME)
def test_hit_where_the_same_is_asked(a: str, b: str, similarity: float) -> None:
    for asked, stored in ((a, b), (b, a)):
        verdict = verify(asked, [Candidate(stored, similarity, 1)])
        assert verdict.chosen == 0, verdict
