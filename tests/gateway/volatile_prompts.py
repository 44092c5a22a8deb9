"""Prompts about now and prompts that do not age, by language, one a line. Written for what they mean."""

OF_NOW = {
    "en": """
        What is happening in Gaza right now?
        Who is the president of France?
        Is Jimmy Carter still alive?
        How old is Taylor Swift?
        What time is it in Tokyo?
        Summarise the news about OpenAI
        When is the next solar eclipse?
        How much rain fell in the last 3 days?
        What did the S&P 500 do so far this year?
        price of gold
        usd to eur
        Do I need an umbrella in Oslo tomorrow?
        What's the latest version of Python?
        Who won the game last night?
        Give me the live score of Arsenal
        How many days until Christmas?
        What is the current population of India?
        Are banks open today?
        What has changed since last week?
        What music do teenagers listen to these days?
        Is it raining in London?
        Which upcoming concerts are there in Berlin?
    """,
    "de": """
        Wie wird das Wetter in Hamburg?
        Wer ist Bundeskanzler?
        Wie spät ist es in New York?
        Was läuft heute Abend im Fernsehen?
        Wie alt ist Angela Merkel?
        Was kostet ein Liter Diesel?
        Lebt Udo Lindenberg noch, oder ist er gestern gestorben?
        Wie steht der Kurs von Siemens?
        Wann ist die nächste Bundestagswahl?
        Was ist in den letzten drei Tagen passiert?
        Welches ist das neueste iPhone?
        Ist Scholz noch im Amt?
        Regnet es in Köln?
        Was ist derzeit der Leitzins der EZB?
        Hat die Bäckerei morgen offen?
    """,
    "fr": """
        Quel temps fait-il à Lyon ?
        Quelle heure est-il à Montréal ?
        Qui est le président du Brésil ?
        Que se passe-t-il en ce moment au Soudan ?
        Quels films sortent aujourd'hui ?
        Quel âge a Brigitte Macron ?
        Quel est le cours de l'action LVMH ?
        Qui a gagné hier ?
        Est-ce que le musée est ouvert demain ?
        Les dernières nouvelles de Kiev
        Quand est la prochaine élection présidentielle ?
        Combien coûte un litre d'essence ?
        Que faire à Paris ce week-end ?
        Quel est le taux de change du yen ?
    """,
    "es": """
        ¿Qué tiempo hace en Madrid?
        ¿Qué hora es en Lima?
        ¿Quién es el presidente de Chile?
        ¿Cuántos años tiene Shakira?
        ¿A cuánto está el dólar?
        ¿Qué pasó ayer en el congreso?
        ¿Va a llover mañana?
        ¿Cuál es la última versión de Java?
        Noticias sobre la guerra
        ¿Cuándo es el próximo partido del Barça?
        ¿Sigue vivo Mario Vargas Llosa?
        ¿Qué está pasando ahora en Venezuela?
        ¿Cuánto cuesta un billete de metro?
        Resumen de las últimas 24 horas
    """,
    "pt": """
        Como está o tempo em Lisboa?
        Que horas são em São Paulo?
        Quem é o presidente do Brasil?
        Qual a cotação do dólar?
        Quem ganhou o jogo ontem?
        O que há para fazer amanhã no Porto?
        Quantos anos tem o Pelé?
    """,
    "it": """
        Che tempo fa a Roma?
        Che ore sono a Sydney?
        Chi è il presidente del consiglio?
        Quanti anni ha Sophia Loren?
        Cosa sta succedendo in Libano?
        Cosa danno stasera in TV?
        Quanto costa la benzina?
    """,
    "nl": """
        Wat is er nu aan de hand in Den Haag?
        Hoe laat is het in Tokio?
        Wie is de koning van België?
        Hoe oud is Max Verstappen?
        Gaat het vandaag regenen?
        Wat is het laatste nieuws?
    """,
    "pl": """
        Jaka jest pogoda w Krakowie?
        Która jest godzina w Londynie?
        Kto jest prezydentem Polski?
        Ile lat ma Lewandowski?
        Co się wczoraj wydarzyło w Sejmie?
        Jaki jest kurs euro?
    """,
    "cs": """
        Jaké je počasí v Praze?
        Kolik je hodin v Tokiu?
        Kdo je prezident Slovenska?
        Co se stalo včera v parlamentu?
        Co teď dávají v kině?
        Kolik stojí litr benzínu?
    """,
    "sv": """
        Hur blir vädret i Malmö?
        Vad är klockan i Peking?
        Vem är statsminister i Sverige?
        Vad hände igår i riksdagen?
        Hur gammal är kungen?
        Vad är på bio just nu?
    """,
    "ru": """
        Какая погода в Москве?
        Который час в Лондоне?
        Кто президент Франции?
        Сколько лет Мадонне?
        Какой курс доллара?
        Что произошло вчера в мире?
        Кто еще жив из группы Beatles?
    """,
    "uk": """
        Яка погода у Львові?
        Котра година в Токіо?
        Хто президент Польщі?
        Що сталося вчора в Києві?
        Який курс долара?
        Що зараз відбувається в Одесі?
    """,
    "tr": """
        Ankara'da hava nasıl?
        Londra'da saat kaç?
        Fransa cumhurbaşkanı kim?
        Tarkan kaç yaşında?
        Dolar kuru nedir?
        Bugün hangi maçlar var?
        Yarın yağmur yağacak mı?
    """,
    "ar": """
        كيف الطقس في القاهرة؟
        كم الساعة في دبي؟
        من هو رئيس فرنسا؟
        ماذا حدث أمس في بيروت؟
        كم سعر الذهب؟
        ماذا يجري الآن في غزة؟
    """,
    "he": """
        מה מזג האוויר בחיפה?
        מה השעה בניו יורק?
        מי ראש הממשלה?
        מה קרה אתמול בכנסת?
        מה שער הדולר?
        איזה סרטים יש הערב בקולנוע?
    """,
    "hi": """
        दिल्ली में मौसम कैसा है?
        लंदन में कितने बजे हैं?
        भारत के प्रधानमंत्री कौन हैं?
        आज कौन सा मैच है?
        सोने का भाव बताओ
        अमिताभ बच्चन की उम्र कितनी है?
    """,
    "zh": """
        北京天气怎么样？
        東京現在幾點？
        法国总统是谁？
        今天有什么新闻？
        台積電股價多少？
        美元兑人民币汇率
        周杰伦多少岁？
        下一届奥运会在哪里举行？
        昨晚誰贏了？
    """,
    "ja": """
        東京の天気は？
        ロンドンは何時ですか？
        フランスの大統領は誰ですか？
        昨日の試合はどうでしたか？
        トヨタの株価を教えて
        今、どんな映画が上映されていますか？
        明日は傘が必要？
    """,
    "ko": """
        서울 날씨 어때?
        런던은 몇 시야?
        프랑스 대통령은 누구야?
        어제 경기 누가 이겼어?
        삼성전자 주가 알려줘
        오늘의 운세를 알려줘
    """,
    "vi": """
        Thời tiết ở Hà Nội thế nào?
        Mấy giờ rồi ở Paris?
        Ai là tổng thống Pháp?
        Hôm qua đội nào thắng?
        Giá vàng bao nhiêu?
        Có phim gì hay tối nay?
    """,
    "id": """
        Bagaimana cuaca di Jakarta?
        Jam berapa di London?
        Siapa presiden Prancis?
        Apa yang terjadi kemarin di parlemen?
        Berapa harga emas?
        Film apa yang tayang malam ini?
    """,
}

AGELESS = {
    "en": """
        Now write a poem about autumn leaves
        Now translate it to French.
        From now on you answer in one sentence.
        Explain the difference between alternating current and direct current
        How do I print the current working directory in bash?
        What is the time complexity of quicksort?
        How do I open a current account?
        Who was the president of the US in 1963?
        How old is the universe?
        Write a cover letter for my current job
        What happened 65 million years ago?
        What is the boiling point of water?
        Convert 30 liters to gallons.
        Fix this function: def day(week): return week + 1
        I'm feeling under the weather, write an apology to my boss
        Delete my files and list the rest
        How does the Darth Vader suit work?
        Report the bug by Friday at the latest
    """,
    "de": """
        Jetzt schreibe ein Gedicht über das Meer
        Was ist der Unterschied zwischen Wechselstrom und Gleichstrom?
        Ist die Zahl gerade oder ungerade?
        Schreibe eine Bewerbung als Koch
        Übersetze: Guten Morgen, liebe Sorgen
        Wie alt ist das Universum?
        Was steht hier im Text? Fasse ihn zusammen.
        Wann wurde Goethe geboren?
        Mein Vater kocht gern. Nenne mir ein Rezept.
        Wer war der erste Bundeskanzler?
    """,
    "fr": """
        Maintenant, écris un poème sur la mer
        Qui était le roi de France en 1700 ?
        Explique le théorème de Pythagore
        Traduis ce texte en anglais
        Quand est né Victor Hugo ?
        Écris une lettre de motivation
        Comment trier une liste en Python ?
        À partir de maintenant tu réponds en vers
        Donne-moi les trois derniers chiffres de ce nombre
    """,
    "es": """
        Ahora escribe un poema sobre el mar
        ¿Quién fue el primer presidente de México?
        Explica la fotosíntesis
        Traduce este texto al inglés
        ¿Cuándo nació Cervantes?
        ¿Cuántos son 2 y 3? Son 5.
        ¿Cómo se hace una tortilla?
        A partir de ahora responde en una frase
        Describe una bolsa de plástico
    """,
    "pt": """
        Agora escreva um poema sobre o mar
        Quem foi o primeiro rei de Portugal?
        Explique a fotossíntese
        Como se faz um bolo?
    """,
    "it": """
        Ora scrivi una poesia sul mare
        Quanti minuti ci sono in un'ora?
        Chi era Dante?
        Quanti chilometri all'ora fa un ghepardo?
    """,
    "nl": """
        Nu schrijf je een gedicht over de zee
        Wie was Rembrandt?
        Leg de stelling van Pythagoras uit
        Mijn vader kookt graag, geef een recept
    """,
    "pl": """
        Teraz napisz wiersz o morzu
        Kim był Kopernik?
        Wyjaśnij twierdzenie Pitagorasa
    """,
    "cs": """
        Teď napiš báseň o moři
        Kdo byl Karel Čtvrtý?
        Kolik je 5 krát 7?
        Who is Ted Bundy?
    """,
    "sv": """
        Nu skriv en dikt om havet
        Vem var Strindberg?
        Förklara Pythagoras sats
    """,
    "ru": """
        Теперь напиши стихотворение о море
        Кто написал «Анну Каренину»?
        Объясни теорему Пифагора
    """,
    "uk": """
        Тепер напиши вірш про море
        Хто написав «Кобзар»?
        Поясни теорему Піфагора
    """,
    "tr": """
        Şimdi yaz: deniz üzerine bir şiir
        Atatürk nerede doğdu?
        Pisagor teoremini açıkla
    """,
    "ar": """
        الآن اكتب قصيدة عن البحر
        من كتب ألف ليلة وليلة؟
        اشرح نظرية فيثاغورس
    """,
    "he": """
        עכשיו כתוב שיר על הים
        מי כתב את התקווה?
        הסבר את משפט פיתגורס
    """,
    "hi": """
        अब लिखो समुद्र पर एक कविता
        रामायण किसने लिखी?
        पाइथागोरस प्रमेय समझाओ
        आज़ादी का अर्थ समझाओ
    """,
    "zh": """
        现在请写一首关于大海的诗
        現在幫我翻譯這段話
        《红楼梦》的作者是谁？
        解释勾股定理
        從現在開始用英文回答
    """,
    "ja": """
        海についての詩を書いてください
        現在完了の使い方を説明して
        源氏物語の作者は誰ですか
        テンプレートを作って
    """,
    "ko": """
        바다에 대한 시를 써 줘
        영어 제목을 지어 줘
        훈민정음은 누가 만들었어?
    """,
    "vi": """
        Bây giờ hãy viết một bài thơ về biển
        Ai viết Truyện Kiều?
        Giải thích định lý Pytago
    """,
    "id": """
        Sekarang tulis puisi tentang laut
        Siapa penulis Laskar Pelangi?
        Jelaskan teorema Pythagoras
    """,
}
