"""A Typer command that does nothing: what every command in Python with this command line takes to start."""

import typer

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def main(store: str) -> None:
    pass


if __name__ == "__main__":
    app()
