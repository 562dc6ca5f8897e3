"""The `secureafl` command."""

from __future__ import annotations

import csv
import inspect
import json
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from secureafl import __version__
from secureafl.cli.explain import ExplainingGroup
from secureafl.cli.laboratory import app as lab
from secureafl.cli.new import Engine, create_app, next_commands
from secureafl.defenses import DEFENSES, DefenseEntry, find_defense
from secureafl.errors import SettingsError
from secureafl.fitted import FittedTable, PlainConsole
from secureafl.plugins import installed, load_object
from secureafl.server.record.address import Place, parse_place, store_of, with_objects
from secureafl.server.record.entries import Event
from secureafl.server.record.names import ClientNames, names_of
from secureafl.server.record.resumption import ask_to_resume
from secureafl.server.review import audit as auditing
from secureafl.server.review import copying
from secureafl.server.review import eject as ejecting
from secureafl.server.review import verify as verifying
from secureafl.server.review.notices import ADVICE, notices, of_newcomers, said_of
from secureafl.server.review.opened import RecordedRun
from secureafl.server.review.replay import compare
from secureafl.settings import Settings, read_assignments
from secureafl.text import csv_cell, one_line, visible
from secureafl.types import Vector

app = typer.Typer(
    name="secureafl",
    cls=ExplainingGroup,
    pretty_exceptions_show_locals=False,
    help="Asynchronous federated learning that stays right when some clients are malicious.",
    epilog="Start with: secureafl defenses",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
app.add_typer(lab, name="lab")
console = PlainConsole()
T = TypeVar("T")

MAX_ROWS = 40
"""Clients that a table has in a terminal: more would push the worst, which come first, out of sight."""


def _print_version(wanted: bool) -> None:
    if wanted:
        console.print(f"secureafl {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Asynchronous federated learning that stays right when some clients are malicious."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # modules of the user's own are found; last, so that none of them hides another


@app.command()
def defenses(
    name: Annotated[
        str | None, typer.Argument(help="Show this defense and its settings; MODULE:NAME for one of your own.")
    ] = None,
) -> None:
    """List the defenses, or show NAME with its settings."""
    if name is None:
        console.print(_overview())
        console.print("One with its settings: [bold]secureafl defenses NAME[/bold]")
        return
    console.print(_settings_table(name))
    console.print(MARKS, markup=False, highlight=False)


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="APP", help="Folder for the app; its name is the app's.")],
    engine: Annotated[Engine, typer.Option(help="A Flower app, or a job for NVIDIA FLARE.")] = Engine.FLOWER,
) -> None:
    """Write a small app that runs as it is, attack included, to be turned into your own.

    For example: `secureafl new my-app`
    """
    for path in create_app(folder, engine):
        console.print(str(path), markup=False, highlight=False, soft_wrap=True)
    console.print("Next:", style="bold")
    for command in (f"cd {shlex.quote(str(folder))}", *next_commands(engine)):
        console.print(f"  {command}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def check(
    place: Annotated[
        Path, typer.Argument(metavar="APP", help="Folder of a Flower app or of an NVFlare job, or the job's file.")
    ],
    clients: Annotated[int | None, typer.Option(min=1, help="How many clients there will be.")] = None,
    parameters: Annotated[
        int | None, typer.Option(min=1, help="How large the model is; needed only if the app does not say.")
    ] = None,
) -> None:
    """Say what would go wrong with an app before it starts: settings, keys, ports, disk and memory.

    The app's own code is imported, and its first model is made. Nothing is written.
    """
    from secureafl.cli.check import Level, check_app

    problems = 0
    colours = {Level.OK: "green", Level.NOTE: "yellow", Level.PROBLEM: "red"}
    for finding in check_app(place, num_clients=clients, num_parameters=parameters):
        problems += finding.level is Level.PROBLEM
        said = visible(" ".join(finding.text.split()))
        line = Table.grid(Column(width=7), Column(width=8), Column(overflow="fold"), padding=(0, 1, 0, 0))
        line.add_row(Text(finding.level, style=colours[finding.level]), finding.about, Text(said))
        console.print(line)
    if problems:
        console.print(f"{problems} problem{'s' * (problems > 1)}: it would not run as it is.", style="bold")
        raise typer.Exit(1)
    console.print("Nothing stands in its way.", style="bold")


RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="The run's folder, the one that holds run.db, or its postgresql://USER@HOST/DATABASE/RUN."
    ),
]


NUM_VERDICTS = 10
"""A client's newest verdicts that are listed."""

NamesOption = Annotated[
    Path | None,
    typer.Option(
        "--names",
        envvar="SECUREAFL_NAMES",
        metavar="FILE",
        help="TOML file of clients' names; the run's own by default.",
    ),
]


AllOption = Annotated[
    bool,
    typer.Option("--all", help=f"In a terminal, show every client and not only {MAX_ROWS}; in a pipe all are shown."),
]


@app.command()
def audit(
    run: RunArgument,
    update: Annotated[int | None, typer.Option(help="Explain the verdict on this arrival in plain words.")] = None,
    client: Annotated[
        str | None, typer.Option(help="One client alone: its id, its name, or the beginning of either.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    everyone: AllOption = False,
    names_file: NamesOption = None,
) -> None:
    """Say who took part in a run, who was accepted, and why not.

    RUN is the run's folder, the one that holds `run.db`: `run-dir` of a federation, `--record` of the laboratory.
    Or it is the `postgresql://` URL given as `run-dir`.
    """
    place = parse_place(run)
    with RecordedRun.open(place, whole=client is None) as recorded:
        names = names_of(store_of(place), names_file)
        if client is not None:
            _audit_client(recorded, client, names, as_json=as_json)
            return
        if update is not None:
            entry = auditing.arrival(recorded, update)
            if entry is None:
                raise SettingsError(f"{place} has no arrival {update}")
            for line in auditing.explain(entry, names):
                console.print(Text(line))
            return
        records = auditing.client_records(recorded)
        if as_json:
            typer.echo(json.dumps([_summary_of(record, names) for record in records], indent=2))
        elif as_csv:
            rows = [_summary_of(record, names) for record in records]
            writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]) if rows else [])
            writer.writeheader()
            writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in rows)
        else:
            weighs = any(record.vote is not None for record in records)
            shown = _first(records, everyone)
            console.print(_audit_table(place, shown, recorded.facts, names, weighs=weighs))
            _say_rest(len(records) - len(shown), "clients")
            if found := notices(records, recorded.facts):
                console.print(Text(ADVICE))
                noticed = _first(list(found.items()), everyone)
                for client, why in noticed:
                    console.print(Text(f"  {names.shown_with_id(client)}: {why}"), soft_wrap=True)
                _say_rest(len(found) - len(noticed), "such clients")
            if newcomers := of_newcomers(records, recorded.facts):
                console.print(Text(newcomers))
            console.print(
                f"{_ABOUT_VOTE if weighs else _ABOUT_INFLUENCE}; stale: versions behind;\n"
                "factor: how abruptly it changed, median; seen: last. More: --json, --csv.\n"
                "One verdict in plain words: [bold]secureafl audit RUN --update N[/bold]"
            )


def _audit_client(recorded: RecordedRun, asked: str, names: ClientNames, *, as_json: bool) -> None:
    found = auditing.client_record(recorded, asked)
    if found is None:
        found = auditing.client_record(recorded, names.find(asked, recorded.journal.clients(), str(recorded.place)))
    assert found is not None
    record, entries = found
    if as_json:
        typer.echo(json.dumps(_summary_of(record, names), indent=2))
        return
    told = f"{record.accepted} of {record.arrivals} updates accepted"
    told += "".join(f"; {count} {what}" for what, count in record.happened().most_common())
    if record.vote is not None:
        told += f"; its vote weighs {record.vote:.2g}"
    if record.epsilon is not None:
        told += f"; in its own words it has given away epsilon = {record.epsilon:.3g}, delta = {record.delta:.0e}"
    console.print(Text(f"{names.shown_with_id(record.client)}: {told}."), soft_wrap=True)
    for notice in notices([record], recorded.facts).values():
        console.print(Text(f"{ADVICE} {notice}"), soft_wrap=True)
    arrivals = [entry for entry in entries if entry.event is Event.ARRIVAL]
    for entry in arrivals[-NUM_VERDICTS:]:
        console.print(
            Text(f"  arrival {entry.version}, {entry.seconds:.1f} s: {one_line(entry.reason)}"), soft_wrap=True
        )
    console.print(
        "Only this client's rows were read and checked; [bold]secureafl verify RUN[/bold] checks all.\n"
        "One verdict in plain words: [bold]secureafl audit RUN --update N[/bold]"
    )


@app.command()
def resume(run: RunArgument) -> None:
    """Have the next server on this run go on with it, instead of beginning a new one.

    For any app, also a Flower app that does not list the setting `resume`: then start the app as before.
    """
    version = ask_to_resume(place := parse_place(run))
    console.print(
        f"The next server with run-dir = {place} goes on from version {version} of the model. Start the app as before.",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


@app.command()
def verify(
    run: RunArgument,
    sign: Annotated[
        Path | None,
        typer.Option(metavar="KEY", help="Sign the head with this key, made by keygen; keep the file apart."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="PUBLIC", help="Check a signed head with this public key, as keygen printed it."),
    ] = None,
    signed: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The signed head to check; the run's own by default.")
    ] = None,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Go on from the last row that is there; the loss is recorded.")
    ] = False,
) -> None:
    """Check that a run's record is whole, row by row, and print its head: the number and hash of its newest row.

    A head stands for every row before it. Sign it and leave it with somebody else: later, `--against` proves that
    nothing before it was changed.
    """
    place = parse_place(run)
    if accept_loss:
        verifying.accept_loss(place)
    _say_whole(place, verifying.verify(place))
    if sign is None and against is None:
        return
    from secureafl.engines import signing

    if sign is not None:
        typer.echo(f"signed: {verifying.sign(place, signing.read_private_key(sign))}")
    if against is not None:
        head = verifying.verify_signed(place, signed or verifying.signed_file(place), signing.read_public_key(against))
        typer.echo(f"nothing was changed up to row {head.number}, which was signed with this key")


@app.command()
def copy(
    run: RunArgument,
    to: Annotated[str, typer.Argument(metavar="TO", help="Folder or URL for the copy. It holds no run yet.")],
    objects: Annotated[
        str | None,
        typer.Option(help="For a copy in a database: a folder, or s3://BUCKET/PREFIX, for updates and snapshots."),
    ] = None,
) -> None:
    """Copy a run from a folder to a database, or back, and check the copy row by row. The run itself stays as it is.

    For example: `secureafl copy runs/today postgresql://secureafl@db/runs/today`. The run's server has to be stopped.
    """
    target = with_objects(parse_place(to), objects)
    _say_whole(target, copying.copy(parse_place(run), target))


@app.command()
def keygen(
    private: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write the private key (PEM). It is new.")],
) -> None:
    """Make an Ed25519 key pair: for a client that signs its updates, or for an operator's `verify --sign`.

    The private key goes to FILE, for its owner's eyes alone; a file that exists is never overwritten. The public key is
    printed: `keys.toml` and `verify --against` take it.
    """
    from secureafl.engines import signing

    typer.echo(signing.write_key_pair(private))


@app.command(context_settings={"ignore_unknown_options": True})
def warm(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND", help="The SuperNode's command with its options.")
    ],
    imports: Annotated[
        list[str] | None,
        typer.Option("--import", metavar="MODULE", help="What the app imports and is slow to; may be repeated."),
    ] = None,
) -> None:
    """Run a Flower SuperNode whose ClientApp starts at once: what it imports is imported once, not for each message.

    For example: `secureafl warm --import torch -- flower-supernode --insecure --superlink 127.0.0.1:9092`
    """
    from secureafl.engines.flower.warm import run_warm

    raise typer.Exit(run_warm(command, imports or []))


@app.command()
def watch(
    run: RunArgument,
    once: Annotated[bool, typer.Option("--once", help="Print one picture and leave.")] = False,
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Time between two looks.")] = 1.0,
    names_file: NamesOption = None,
) -> None:
    """Show a run in the terminal while it runs, until it is over or Ctrl-C."""
    from secureafl.view import terminal

    terminal.watch(parse_place(run), console, once=once, seconds=every, names=names_file)


@app.command()
def dashboard(
    run: RunArgument,
    host: Annotated[str, typer.Option(help="Address to bind to. Others than this machine need a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to bind to; 0 for any free one.")] = 8765,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="SECUREAFL_DASHBOARD_TOKEN", help="Ask visitors for this; made if others can reach the server."
        ),
    ] = None,
    names_file: NamesOption = None,
) -> None:
    """Show a run in the browser, live or finished, until Ctrl-C; or a folder of runs, to compare them. Reads only."""
    from secureafl.view.web.serve import serve

    place = parse_place(run)

    def say(address: str) -> None:
        console.print(f"{place} is shown at {address}", soft_wrap=True, markup=False, highlight=False)
        console.print("Ctrl-C ends it.")

    serve(place, host=host, port=port, token=token, say=say, names=names_file)


@app.command()
def standby(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The run's postgresql://USER@HOST/DATABASE/RUN; it may begin later.")
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND...]", help="What starts the next server, with resume set."),
    ] = None,
    start_seconds: Annotated[
        float, typer.Option(min=1.0, help="How long such a server may take until it leads.")
    ] = 120.0,
    metrics_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Answer Prometheus' scrapes on this port.")
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="Address to bind that port to.")] = "127.0.0.1",
) -> None:
    """Follow a run in a database, repeat and check every row, and start the next server when its leader is gone.

    For example: `secureafl standby postgresql://secureafl@db/runs/today -- flwr run . production --run-config
    secureafl.resume=true`. It goes on until the run is finished. Without a command it follows and checks, and starts
    nothing.
    """
    place = parse_place(run)
    if isinstance(place, Path):
        raise SettingsError(
            f"a standby follows a run in a database, and {place} is a folder: move it there with"
            " secureafl copy, or let a service manager start its server again, with resume set"
        )
    from secureafl.server.standby.command import run_standby

    run_standby(place, command or [], start_seconds=start_seconds, host=metrics_host, port=metrics_port, say=typer.echo)


@app.command()
def replay(
    run: RunArgument,
    defense: Annotated[
        str | None,
        typer.Option(help="Judge by this defense, or by your own, MODULE:NAME; the run's own if not given."),
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of the defense.")
    ] = None,
    evaluate: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION", help="Score both models on the way: takes the flat parameters, returns metrics."
        ),
    ] = None,
    evaluate_every: Annotated[int, typer.Option(min=1, help="Arrivals between two scores.")] = 100,
    everyone: AllOption = False,
    names_file: NamesOption = None,
) -> None:
    """Judge a recorded run again under another defense or setting, and show what would have changed.

    For example: `secureafl replay runs/today --defense kardam`, or `--set tolerance=4` for the run's own defense.
    """
    with RecordedRun.open(parse_place(run)) as recorded:
        machine = recorded.machine(defense=defense, changes=read_assignments(changes or []))
        scorer = _function(evaluate) if evaluate is not None else None
        found = compare(recorded, machine, evaluate=scorer, evaluate_every=evaluate_every)
        names = names_of(store_of(recorded.place), names_file)
    own = visible(str(recorded.facts["defense"]))
    table = FittedTable(title=f"{recorded.place}: {found.num_arrivals} arrivals, {own} then, {defense or own} now")
    table.add_column("client")
    for column in ("updates", "accepted then", "accepted now"):
        table.add_column(column, justify="right")
    rows = [
        (found.accepted_now[client] / count, found.accepted_then[client] / count, client, count)
        for client, count in found.arrivals.items()
    ]
    shown = _first(sorted(rows), everyone)
    for now, then, client, count in shown:
        table.add_row(Text(names.shown(client)), str(count), f"{then:.0%}", f"{now:.0%}")
    console.print(table)
    _say_rest(len(rows) - len(shown), "clients")
    for (before, after), count in found.changed.most_common():
        change = f"{one_line(before)} then, {one_line(after)} now"
        console.print(Text(f"{count} arrival{'s' * (count > 1)}: {change}"))
    if found.scores:
        console.print(_scores_table(found.scores))
    if found.distances:
        console.print(f"The two models ended {found.distances[-1]:.4g} apart; at most {max(found.distances):.4g}.")


@app.command()
def eject(
    run: RunArgument,
    client: Annotated[
        list[str],
        typer.Option(help="A client to take out, by id, name, or the beginning of one; may be given several times."),
    ],
    out: Annotated[str, typer.Option(metavar="RUN", help="Folder or URL for the repaired run.")],
    names_file: NamesOption = None,
) -> None:
    """Rebuild a run's model without the contribution of some clients, from its journal alone.

    For example: `secureafl eject runs/today --client client-3 --out runs/fixed`. The run itself stays as it is.
    """
    repaired = parse_place(out)
    with RecordedRun.open(parse_place(run)) as recorded:
        names = names_of(store_of(recorded.place), names_file)
        repair = ejecting.eject(recorded, client, repaired, names=names)
    console.print(f"{repair.removed} arrivals taken out, {repair.kept} kept; the model moved by {repair.distance:.4g}.")
    if repair.left_out:
        console.print(
            f"{repair.left_out} updates of others were left out too: the models they were computed on are so far from "
            "the repaired path that they say nothing about it. Resume the run to train on.",
            soft_wrap=True,
        )
    console.print(f"The repaired run is in {repaired}; it can be resumed.", markup=False, soft_wrap=True)


def _first(rows: list[T], everyone: bool) -> list[T]:
    """As many rows as a terminal shows; all of them in a pipe, or if the user wants `everyone`."""
    return rows if everyone or not console.is_terminal else rows[:MAX_ROWS]


def _say_rest(count: int, what: str) -> None:
    if count:
        console.print(f"… and {count:,} more {what}: --all shows them", markup=False, highlight=False)


def _say_whole(place: Place, found: verifying.Verified) -> None:
    console.print(
        f"{place} is whole: {found.num_rows} rows, {found.num_updates} updates, {found.num_snapshots} snapshots.",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    typer.echo("no chain: written by 0.1" if found.head is None else f"head {found.head}")


def _function(name: str) -> Callable[[Vector], Mapping[str, float]]:
    """The function that `--evaluate` names."""
    found = load_object(name)
    if not callable(found):
        raise SettingsError(f"--evaluate takes MODULE:FUNCTION, and {name} is a {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def _scores_table(scores: list[tuple[int, Mapping[str, float], Mapping[str, float]]]) -> Table:
    table = Table("arrivals", title="Scores, then and now")
    metrics = list(scores[0][1])
    for metric in metrics:
        table.add_column(f"{metric} then", justify="right")
        table.add_column(f"{metric} now", justify="right")
    for version, then, now in scores:
        table.add_row(str(version), *(f"{side[metric]:.4f}" for metric in metrics for side in (then, now)))
    return table


def _summary_of(record: auditing.ClientRecord, names: ClientNames) -> dict[str, object]:
    """The record as plain values, with the client's name if the operator gave any."""
    found = record.summary()
    return {"client": found.pop("client"), "name": names.get(record.client), **found} if names else found


_ABOUT_VOTE = "vote: what the client's vote weighs now, 1 is whole"
_ABOUT_INFLUENCE = "influence: how far the model follows the client"


def _audit_table(
    place: Place,
    records: list[auditing.ClientRecord],
    facts: Mapping[str, Any],
    names: ClientNames,
    *,
    weighs: bool,
) -> FittedTable:
    """`weighs`: the defense says what votes weigh; otherwise the table has each client's influence."""
    table = FittedTable(
        title=str(place),
        box=None,
        pad_edge=False,
        collapse_padding=True,
        header_style="bold underline",
    )
    table.add_column("client")
    columns = {"updates": 0, "accepted": 0, "vote" if weighs else "influence": 2, "stale": 4, "factor": 3, "seen": 5}
    for column, rank in columns.items():
        table.add_column(column, rank=rank, justify="right")
    table.add_column("why not, and what else", rank=1)
    table.add_column("id" if names else "", rank=6)
    for record in records:
        summary = record.summary()
        factor, staleness = summary["lipschitz factor 50%"], summary["staleness"]
        vote = f"{record.vote:.2f}" if record.vote is not None else ""
        share = f"{record.influence:.1%}" if record.influence is not None else ""
        happened = [f"{count} {one_line(what)}" for what, count in record.happened().items()]
        table.add_row(
            Text(names.shown(record.client)),
            str(record.arrivals),
            f"{record.share_accepted:.0%}",
            vote if weighs else share,
            "" if staleness is None else f"{staleness:.1f}",
            "" if factor is None else f"{factor:.3g}",
            f"{record.last_seen:.0f} s",
            Text("\n".join([*said_of(record.client, facts), *happened])),
            Text(visible(record.client) if names.get(record.client) is not None else ""),
        )
    return table


MARKS = (
    "[P] a value of the SecureAFL paper, [O] of the method's own paper, [C] of published code, [A] our choice,\n"
    "[U] not said by the paper."
)
"""What the letters behind settings mean."""


def _overview() -> Table:
    table = Table(title="Defenses", title_justify="left")
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("what it does")
    table.add_column("needs trusted data")
    for name in dict.fromkeys([*DEFENSES, *installed("defense")]):
        entry = find_defense(name)
        needs = "yes" if {"reference", "score"} & set(entry.needs) else "no"
        table.add_row(name, _summary(entry), needs)
    return table


def _settings_table(name: str) -> Table:
    entry = find_defense(name)
    table = Table(title=escape(f"{name}: {_summary(entry)}"), title_justify="left", show_lines=True)
    for column in ("setting", "default", "meaning"):
        is_name = column == "setting"
        table.add_column(column, style="bold" if is_name else None, overflow="fold", no_wrap=is_name)
    for key, field in entry.settings.model_fields.items():
        table.add_row(key, str(field.default), " ".join((field.description or "").split()))
    if not entry.settings.model_fields:
        table.add_row("none", "", "There is nothing to set.")
    return table


def _summary(entry: DefenseEntry) -> str:
    """What the defense's own file, or the package it is, says of it in its opening paragraph."""
    described = entry.make if entry.settings is Settings else entry.settings
    module = inspect.getmodule(described)
    if module is not None and module.__name__.endswith(".flat_settings"):  # of a method that is a package
        module = sys.modules[module.__name__.rpartition(".")[0]]
    opening = " ".join((inspect.getdoc(module) or "").split("\n\n")[0].split())
    return opening.partition(": ")[2] or opening
