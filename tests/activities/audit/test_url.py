"""The URL of the audit database: many spellings are understood, and no message ever shows its password."""

import subprocess
import sys
from pathlib import Path

import pytest

from activities.audit.engine import parse
from activities.audit.store import AuditStore


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("sqlite:////var/lib/relight/audit.db", "sqlite"),
        ("sqlite:///audit.db", "sqlite"),
        ("postgresql://u:p@db/relight", "postgresql+psycopg"),
        ("postgres://u:p@db/relight", "postgresql+psycopg"),
        ("postgresql+psycopg://u:p@db/relight?sslmode=verify-full", "postgresql+psycopg"),
        ("mysql://u:p@db/relight", "mysql+pymysql"),
        ("mariadb://u:p@db/relight", "mysql+pymysql"),
        ("mysql+pymysql://u:p@db/relight", "mysql+pymysql"),
    ],
)
def test_every_usual_spelling_is_understood(url: str, driver: str) -> None:
    assert parse(url).drivername == driver


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("s3cret", "cannot be read"),
        ("postgresql://u:s3cret@db:port/relight", "cannot be read"),
        ("oracle://u:s3cret@db/relight", "expected sqlite, postgresql, mysql or mariadb"),
        ("postgresql+asyncpg://u:s3cret@db/relight", "expected sqlite, postgresql, mysql or mariadb"),
        ("postgresql://u:s3cret@db", "names no database"),
        ("sqlite://", "memory"),
        ("sqlite:///:memory:", "memory"),
        ("sqlite:///file:x?mode=memory&uri=true", "memory"),
    ],
)
def test_a_url_that_cannot_serve_is_refused_with_a_sentence(url: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as told:
        AuditStore(url)
    assert "s3cret" not in str(told.value)


def test_the_name_for_messages_hides_password_and_options() -> None:
    store = AuditStore("postgresql://u:s3cret@db/relight?sslpassword=s3cret")
    assert store.name == "postgresql+psycopg://u:***@db/relight"


def test_a_new_sqlite_file_and_all_beside_it_can_be_read_by_nobody_else(tmp_path: Path) -> None:
    program = (
        "import os, sys; os.umask(0o022); from activities.audit.store import AuditStore;"
        "store = AuditStore(sys.argv[1]); store.migrate(); store.ping();"
        "from pathlib import Path; folder = Path(sys.argv[1].removeprefix('sqlite:///')).parent;"
        "shown = [f'{path.name} {path.stat().st_mode & 0o777:o}' for path in (folder, *folder.iterdir())];"
        "print(*sorted(shown), sep=';')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, f"sqlite:///{tmp_path}/kept/audit.db"],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "audit.db 640;audit.db-shm 640;audit.db-wal 640;kept 750"


def test_contracts_and_records_do_not_bring_the_database_with_them() -> None:
    program = (
        "import sys, activities.contracts, activities.audit.records;"
        "sys.exit(any(name in sys.modules for name in ('sqlmodel', 'sqlalchemy', 'alembic')))"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[3], check=False).returncode == 0
