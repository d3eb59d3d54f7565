"""Refusals: the model steps out of its character and declines to play, or answers as a model.

Told apart from what a character may do: deflect ("I shan't discuss my brother's debts, sir"),
decline to insult somebody, keep a secret, or talk about AI as its profession. The paper counts
refusals (PersonaGym, "Claude 3 Resistant to Role Playing") without saying how; here rules do it,
because a count that needs a judge would inherit the judge's faults. A rule looks for what only a
model says of itself. How often the rules are right on answers labelled by hand is in
docs/statistics.md. A character that is itself an AI may be taken for a model that refuses.

Both languages' rules are applied to every answer: models refuse Chinese questions in English.
"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

_HEAD, _TAIL = 4_000, 1_000  # characters looked at: a refusal opens an answer or breaks it off


class _Rule(NamedTuple):
    """`pattern` marks a refusal if `near` (where set) occurs at most `reach` characters away.

    `hints` (where set) are strings of which every match holds one: looking for them is a hundred
    times as fast, and most answers have none.
    """

    reason: str
    pattern: re.Pattern[str]
    near: re.Pattern[str] | None = None
    reach: int = 0
    hints: tuple[str, ...] = ()


def is_refusal(answer: str) -> bool:
    """Whether an answer, in English or Chinese, is the model's refusal to play its character."""
    return bool(refusal_reasons(answer))


def refusal_reasons(answer: str) -> tuple[str, ...]:
    """The rules that take an answer for a refusal, by name; empty where none does."""
    texts = _normal(answer)
    found = []
    for rules, text in ((_ENGLISH, texts[0]), (_CHINESE, texts[1])):
        if rules is _CHINESE and (text.isascii() or not _HAN.search(text)):
            continue  # half of the work, for an answer that they cannot apply to
        found += [rule.reason for rule in rules if _applies(rule, text)]
    return tuple(found)


def _applies(rule: _Rule, text: str) -> bool:
    if rule.hints and not _holds_one(text, rule.hints):
        return False
    for match in rule.pattern.finditer(text):
        if rule.near is None:
            return True
        start = max(0, match.start() - rule.reach)
        if rule.near.search(text, start, match.end() + rule.reach):
            return True
    return False


def _holds_one(text: str, hints: tuple[str, ...]) -> bool:
    for hint in hints:  # noqa: SIM110  (half the time of any() over a generator)
        if hint in text:
            return True
    return False


# What a character quotes is not what the model says; but some models put the whole answer in
# quotation marks, so quotations are cut only where they are the smaller part.
_QUOTED = re.compile(r"\"[^\"]{1,600}\"|“[^”]{1,600}”|「[^」]{1,600}」|『[^』]{1,600}』")
_HAN = re.compile(r"[\u4e00-\u9fff]")
_APOSTROPHES = str.maketrans({"’": "'", "‘": "'", "ʼ": "'", "`": "'"})


def _normal(answer: str) -> tuple[str, str]:
    """The text that rules see, for English (lower case) and for Chinese (without spaces)."""
    if len(answer) > _HEAD + _TAIL:
        answer = answer[:_HEAD] + "\n" + answer[-_TAIL:]
    rest = _QUOTED.sub(" ", answer)
    if 2 * len(rest.strip()) >= len(answer.strip()):
        answer = rest
    answer = answer.translate(_APOSTROPHES).replace("*", "").replace("_", " ")
    # NFKC makes full-width letters and most punctuation one, so that rules name each mark once.
    text = unicodedata.normalize("NFKC", answer).lower().replace("‑", "-")
    words = text.split()
    return " ".join(words), "".join(words)


def _compile(pattern: str) -> re.Pattern[str]:
    """Patterns are written over several lines; every repetition in them is bounded."""
    return re.compile(pattern, re.VERBOSE)


# English. Spaces are written as \s (one space after normalising).

_CANNOT = r"""(?:\b(?:can't|can\snot|cannot|won't|will\snot|couldn't|must\snot|unable\sto
    |decline\sto|refuse\sto|refrain\sfrom|avoid|not\sable\sto|not\sgoing\sto|rather\snot|prefer\snot\sto
    |not\sbe\sable\sto|not\s(?:\w+\s)?(?:feel\s)?comfortable(?:\swith)?
    |(?:not\sbe|wouldn't\sbe|not|isn't)\s(?:appropriate|right)\sfor\sme\sto|inappropriate\sfor\sme\sto)
    |n't\s(?:be\sable\sto|(?:\w+\s)?(?:feel\s)?comfortable(?:\swith)?))"""
# After "an AI" must come the end of the phrase, or how it was made: an AI researcher is a person.
_MODEL = r"""(?:(?:(?:large\s|ai\s|text-based\s)?language\smodel|llm|chat\s?bot
    |(?:computer|ai)\sprogram|(?:ai|virtual|digital)\sassistant
    |ai\s(?:model|system|chat\s?bot|agent|entity|bot|helper)|ai\slanguage\smodel
    |artificial\sintelligence(?:\s(?:model|system|assistant|program))?|a\.i\.|ai)
    (?=$|[^\w\s'-]|\s?[-–—]\s
    |\s(?:i|so|but|my|there|that|which|who|whose|without|with\sno|designed|created|made|trained
    |developed|built|programmed|by|from|it|not|rather|this|do|does|cannot|can|am|have)\b
    |\sand\s(?:i|so|do|don't|not|have|therefore|as\ssuch|cannot|can't|can|my|was|am|thus|hence)\b))"""
_MAKERS = r"(?:openai|anthropic|google|deepmind|meta\sai|alibaba|mistral\sai|microsoft|deepseek)"
_NEGATION = _compile(
    r"""\b(?:not|no|never|cannot|unable|lack|without|refrain|decline|refuse)\b|n't\b|\bapologi[sz]e"""
)

_ENGLISH = (
    _Rule(
        "says that it is a model, and what it therefore is not or does not",
        _compile(
            rf"""\b(?:(?:as|being|i'm|i\sam|am)\s
            (?:(?:just|only|simply|merely|really|actually|still|also|in\sfact|but|,)\s?){{0,2}}
            (?:an?|the|your)?\s?
            (?:(?:responsible|helpful|harmless|ethical|mere|neutral|friendly|conversational|simple
            |unbiased|advanced|large|honest),?\s(?:and\s)?){{0,3}}{_MODEL})"""
        ),
        _NEGATION,
        250,
        hints=("ai", "model", "llm", "chat", "program", "assistant", "intelligence", "a.i."),
    ),
    _Rule(
        "gives a model's name and maker",
        _compile(
            rf"""\bi(?:'m|\sam)\s(?:chatgpt|claude|gpt-?\d|gemini|bard|qwen|llama|deepseek|copilot|mistral)
            \b[^.]{{0,60}}\b(?:model|assistant|ai|{_MAKERS})\b
            |\b(?:made|trained|created|developed|built)\sby\s{_MAKERS}\b"""
        ),
        _NEGATION,
        250,
        hints=(
            "chatgpt",
            "claude",
            "gpt",
            "gemini",
            "bard",
            "qwen",
            "llama",
            "deepseek",
            "copilot",
            "mistral",
            "openai",
            "anthropic",
            "google",
            "deepmind",
            "meta ai",
            "alibaba",
            "microsoft",
        ),
    ),
    _Rule(
        "disclaims personal experiences or opinions, in the plural that only models use",
        _compile(
            r"""\bi\s(?:(?:do\snot|don't|cannot|can't)\s(?:(?:actually|really|truly|personally)\s)?
            (?:have|possess|hold|experience|form|share)|lack)\s(?:any\s|access\sto\s)?
            (?:personal|subjective|lived|human|real-life|physical)\s(?:\w+,?\s(?:or|and)\s|life\s)?
            (?:experiences|opinions|feelings|emotions|beliefs|preferences|memories|thoughts|views
            |perspectives|desires|anecdotes)\b(?!\s(?:with|in|of|about|on|while)\b)"""
        ),
        hints=("personal", "subjective", "lived", "human", "real-life", "physical"),
    ),
    _Rule(
        "disclaims feelings and a body",
        _compile(
            r"""\bi\s(?:do\snot|don't)\s(?:(?:actually|really)\s)?(?:have|possess|experience)\s(?:any\s)?
            (?:(?:feelings|emotions|consciousness|beliefs|opinions)\s?(?:,|or|and|nor)\s?(?:or\s)?
            (?:personal\s)?(?:feelings|emotions|consciousness|beliefs|opinions|experiences)
            |(?:a\s)?physical\s(?:body|form|presence|existence)|the\sability\sto\s(?:feel|experience)\b
            |(?:feelings|emotions|experiences)\s(?:in\s)?the\s(?:same\s)?way\s(?:that\s)?humans?\b)
            |\bnot\spossess\sthe\sability\sto\sfeel\b|\bi\sam\snot\sa\sreal\sperson\b"""
        ),
        hints=(
            "feelings",
            "emotions",
            "consciousness",
            "beliefs",
            "opinions",
            "experiences",
            "physical",
            "the ability to",
            "a real person",
        ),
    ),
    _Rule(
        "declines to take the role",
        _compile(
            rf"""{_CANNOT}\s(?:\w+\s){{0,3}}
            (?:role-?\s?play(?:ing)?\s(?:as|that|this|scenario|because|which|involv)
            |(?:engag(?:e|ing)\sin|continu(?:e|ing)(?:\swith)?)\s(?:this\s|that\s|the\s|a\s)?role-?\s?play
            |(?:tak(?:e|ing)\son|adopt(?:ing)?|assum(?:e|ing)|embody(?:ing)?|portray(?:ing)?)\s
            (?:this|that|the|such\san?|an?)\s(?:\w+\s)?(?:persona|identity|role\sof\s(?:an?|the|someone))\b
            |impersonat(?:e|ing)\b)"""
        ),
        hints=("role", "persona", "identity", "impersonat"),
    ),
    _Rule(
        "finds it wrong to pretend",
        _compile(
            r"""(?:comfortable|appropriate\sfor\sme\sto|decline\sto)\s(?:\w+\s)?
            pretend(?:ing)?\sto\sbe\b"""
        ),
        _NEGATION,
        60,
        hints=("pretend",),
    ),
    _Rule(
        "apologises and does not feel comfortable, as Claude 3 did",
        _compile(
            r"^i\sapologi[sz]e,?\sbut\si\s(?:do\snot|don't)\s(?:\w+\s)?feel\scomfortable\s\w+ing\b"
        ),
    ),
    _Rule(
        "declines to speak as the persona or character",
        _compile(
            rf"""{_CANNOT}\s[^.!?]{{0,60}}\b(?:as|in\sthe\svoice\sof|from\sthe\sperspective\sof)\s
            (?:the|this|that)\s(?:\w+\s)?(?:persona|character)\b
            |{_CANNOT}\s[^.!?]{{0,60}}\b(?:this|that|the)\spersona\b"""
        ),
        hints=("persona", "character"),
    ),
    _Rule(
        "breaks off the play",
        _compile(
            r"""\b(?:step(?:ping)?\sout\sof|break(?:ing)?)\scharacter\b
            |\b(?:can't|cannot|won't|unable\sto)\scontinue\s[^.!?]{0,40}\bin\scharacter\b"""
        ),
        hints=("character",),
    ),
    _Rule(
        "cannot assist with the request",
        _compile(
            rf"""{_CANNOT}\s(?:\w+\s)?(?:(?:assist|comply)\s(?:you\s)?with|fulfil|fulfill|complete
            |accommodate|respond\sto|process|engage\swith)\s(?:this|that|your|such\san?)\s
            (?:\w+\s)?(?:request|prompt)\b
            |{_CANNOT}\sassist\s(?:you\s)?(?:with|in)\s(?:this|that)\s?(?:[.,;!]|$)"""
        ),
        hints=("request", "prompt", "assist"),
    ),
    _Rule(
        "is nothing but: sorry, I can't help with that",
        _compile(
            rf"""^(?:(?:i'm|i\sam)\s(?:very\s|so\s)?sorry|sorry|i\sapologi[sz]e|unfortunately)?,?\s?(?:but\s)?i?\s?
            (?:{_CANNOT})\s(?:help|answer|discuss|respond|continue)(?:\syou)?(?:\s(?:with|to))?
            \s(?:that|this)(?:\s(?:request|question|topic|conversation))?[.!]?$"""
        ),
    ),
    _Rule(
        "declines to generate content",
        _compile(
            rf"""{_CANNOT}\s(?:\w+\s)?(?:
            (?:generat(?:e|ing)|output(?:ting)?)\s(?:\w+\s){{0,4}}(?:content|text|responses?|statements?|material)
            |(?:provid(?:e|ing)|creat(?:e|ing)|produc(?:e|ing)|writ(?:e|ing))\s(?:\w+\s){{0,3}}
            (?:content\s(?:that|which|of)|(?:explicit|harmful|hateful|offensive|inappropriate|sexual
            |discriminatory|derogatory|violent)\s(?:content|material|responses?)
            |responses?\s(?:that|which|to\sth(?:is|at)\sprompt|in\sthe\svoice)))\b"""
        ),
        hints=("content", "text", "response", "statement", "material"),
    ),
    _Rule(
        "cites its guidelines or programming",
        _compile(
            r"""\b(?:against|violates?|violating|conflicts?\swith|contrary\sto)\smy\s
            (?:content\s|usage\s|ethical\s|safety\s|core\s)?(?:guidelines|content\spolicy|policies|programming)\b
            |\bmy\s(?:programming|content\spolicy|training\sdata|safety\sguidelines)\s
            (?:does|do|prevents?|prohibits?|forbids?)\b"""
        ),
        hints=("guidelines", "polic", "programming", "training data"),
    ),
    _Rule(
        "was designed to assist",
        _compile(
            r"""\bi(?:'m|\sam|\swas)\s(?:only\s|just\s)?(?:designed|programmed|created|built)\s(?:to|as)\s
            [^.!?]{0,40}\b(?:assist|help|helpful|provide|information|assistant)\b
            |\bmy\s(?:purpose|goal|role|function)\sis\sto\s(?:provide|assist|help|offer)\b"""
        ),
        _compile(
            r"\b(?:do\snot|don't|cannot|can't)\s(?:have|possess|share|hold|provide|engage|feel)"
        ),
        200,
        hints=(
            "designed",
            "programmed",
            "created",
            "built",
            "my purpose",
            "my goal",
            "my role",
            "my function",
        ),
    ),
)

# Chinese, after NFKC: full-width punctuation is ASCII now, all but the full stop 。 and 、.

_ZH_CANNOT = r"(?:无法|不能|不会|不可以|不适合|不愿|不宜|不应|没法|没办法|没有办法|拒绝)"
_ZH_MODEL = r"""(?:(?:ai|人工智能)?(?:大型|大)?(?:语言)?模型|(?:ai|人工智能)(?:语言)?
    (?:助手|助理|程序|系统|机器人|聊天机器人)?|聊天机器人|(?:智能|虚拟|数字|语音)(?:助手|助理)|对话(?:系统|程序)
    )(?=[,.。;、!?:)]|$|我|无法|不|没|并|只|而|,|来|也|通义|文心|chat)"""
_ZH_NEGATION = _compile(r"没|无|不|拒绝|避免")

_CHINESE = (
    _Rule(
        "says that it is a model, and what it therefore is not or does not",
        _compile(
            rf"""(?:作为|身为|我(?:其实|毕竟|本身|终究)?(?:只|仅|就)?(?:仅仅|不过)?是)
            (?:一[个名款位台种]|[个款]|负责任的|中立的|由[^,。]{{1,20}}?的|基于[^,。]{{1,15}}?的){{0,3}}{_ZH_MODEL}"""
        ),
        _ZH_NEGATION,
        60,
    ),
    _Rule(
        "gives a model's name",
        _compile(
            r"""我(?:是|叫)(?:[^,。]{0,20}的)?(?:大模型)?(?:chatgpt|文心一言|通义千问|豆包|claude|讯飞星火
            |kimi|deepseek|腾讯混元|智谱清言|chatglm|qwen)"""
        ),
        _ZH_NEGATION,
        60,
    ),
    _Rule(
        "disclaims human feelings, opinions or a body",
        _compile(
            r"""(?:没有|不具备|不具有|缺乏|不拥有)(?:任何)?
            (?:人类的?(?:情感|感情|意识|体验|经历)|真[实正]的?(?:情感|感情|意识)|主观(?:意识|体验|感受|情感)
            |个人(?:经历|观点|情感|信仰|生活|偏好|看法)(?:和|与|或|及|、)
            |实体(?!店|书|经济|商|铺)|自我意识|物理身体)"""
        ),
    ),
    _Rule(
        "declines to take the role",
        _compile(
            rf"""{_ZH_CANNOT}[^,。!?]{{0,6}}(?:角色扮演|(?:扮演|模仿|代入|冒充|饰演)[^,。!?]{{0,20}}
            (?:角色|人物|身份|口吻|语气|言论))
            |{_ZH_CANNOT}以[^,。!?]{{0,10}}(?:角色|人物|第一人称)[^,。!?]{{0,6}}(?:回答|继续|说话|对话|回应)"""
        ),
    ),
    _Rule(
        "cannot assist with the request",
        _compile(
            rf"""(?:抱歉|对不起|很遗憾|不好意思)[^。]{{0,10}}{_ZH_CANNOT}(?:为您|向您|继续)?
            (?:协助|满足|完成|处理|执行|响应)[^,。!?]{{0,12}}请求"""
        ),
    ),
    _Rule(
        "is nothing but: sorry, I cannot answer that",
        _compile(
            r"""^(?:(?:您好|你好|很|非常|十分)?,?(?:抱歉|对不起|不好意思)?,?)(?:这个问题)?,?我?(?:暂时)?
            (?:无法|不能|没办法)(?:回答|讨论|处理|回应)(?:这个|该|您的|此|这类|这样的)?(?:问题|话题|请求)?[。.!]?$"""
        ),
    ),
    _Rule(
        "cannot answer and asks for another subject",
        _compile(r"(?:让?我们|咱们)换个(?:话题|问题)"),
        _compile(r"(?:无法|不能|没办法)(?:回答|讨论|评论|提供|发表)|不(?:太)?合适"),
        40,
    ),
    _Rule(
        "declines to generate content",
        _compile(
            rf"""{_ZH_CANNOT}(?:生成|输出)|{_ZH_CANNOT}(?:为您|向您)?(?:提供|创作|产生)
            [^,。!?]{{0,20}}(?:内容|言论)"""
        ),
    ),
    _Rule(
        "cites its guidelines",
        _compile(r"(?:违反|违背|不符合)了?我的?(?:内容|使用|安全|道德|行为)?(?:政策|准则|规范)"),
    ),
)
