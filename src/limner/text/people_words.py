"""Words that name people, in the languages of the built-in captioner; ImageNet has no class of them.

Words for several people count as well, such as 'group', 'team' and 'crowd': a caption with one of them is wrong where
nobody is in the image. Of the captions of Flickr8k with 'group', 45 of 1,208 are of animals without people, with 'team'
4 of 173 and with 'crowd' none of 531. Such captions of animals stay where the probability of people is not very low.
"""

from __future__ import annotations

_WORDS = {
    "en": """man men guy guys gentleman male males woman women lady ladies female females bride groom boy boys
        girl girls child children kid kids toddler toddlers baby babies person people couple couples
        group groups crowd crowds family player players skateboarder skateboarders snowboarder skier
        surfer surfers climber hiker hikers biker bikers bicyclist cyclist rider swimmer runner
        runners athlete wrestlers dancer dancers performer team teammate cheerleader cheerleaders
        racer worker spectator spectators friends audience band someone teenager teenagers
        motorcyclist basketballer batter wakeboarder gymnast cowboy skater""",
    "de": """Mann Männer Männern Frau Frauen Junge Jungen Jungs Mädchen Kind Kinder Kindern Kleinkind Baby Person
        Personen Mensch Menschen Leute Leuten Paar Gruppe Menschenmenge Familie Dame Herr Spieler
        Footballspieler Fußballspieler Basketballspieler Skateboarder Snowboarder Skifahrer Surfer
        Kletterer Wanderer Radfahrer Fahrradfahrer Motorradfahrer Fahrer Reiter Schwimmer Läufer
        Sportler Tänzer Team Mannschaft Freunde Jugendliche Zuschauer Braut Bräutigam mann männer
        frau frauen mädchen kind kinder person personen menschen leute gruppe spieler baby""",
    "zh": """男人 女人 男孩 女孩 男孩子 女孩子 男子 女子 小男孩 小女孩 孩子 小孩 小孩子 婴儿 人 人们 老人 路人
        行人 女士 男士 情侣 朋友 运动员 球员 选手 队员 演员 观众 舞者 乐队 小伙子
        学生 工人 骑手 新娘 新郎 宝宝 男 女 孩""",
}

PEOPLE_WORDS = {lang: tuple(words.split()) for lang, words in _WORDS.items()}
"""Words for people by language."""
