"""The tools of the demo: plain Python functions, named in RUNFOLD_TOOLS by their module path."""

from runfold.adapters.toolbox import Tool, tool


@tool
def weather(city: str) -> dict[str, object]:
    """The weather in a city."""
    return {"city": city, "sky": "sunny", "celsius": 22}


@tool
def trains(start: str, end: str) -> list[str]:
    """Departures of the next trains."""
    return [f"{start}-{end} 09:40", f"{start}-{end} 11:40"]


@tool(immediate=True)
def add(numbers: list[float]) -> float:
    """The sum of numbers."""
    return sum(numbers)


@tool
def exchange_rate(currency: str) -> float:
    """Units of a currency for one euro."""
    rates = {"USD": 1.1, "GBP": 0.85}
    if currency not in rates:
        raise LookupError(f"no rate for {currency}")
    return rates[currency]


@tool(changes_state=True, approval="price > 20", approval_reason="it spends more than 20 euros")
def book(train: str, price: float) -> str:
    """Book a seat on a train."""
    return f"booked {train} for {price:g} euros"


@tool(changes_state=True)
def send_mail(to: str, text: str) -> str:
    """Send a mail."""
    raise ConnectionError("the mail server does not answer")


TOOLS: list[Tool] = [weather, trains, add, exchange_rate, book, send_mail]
