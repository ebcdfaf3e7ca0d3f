"""What JetStream's adapter does when its server goes, comes back, or does not know us."""

import asyncio
import base64
import json
import os
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hami_protocol.subjects import StreamSpec
from hami_runtime.bus import BusUnavailable, MessageRefused, jetstream
from hami_runtime.bus.credentials import Credentials
from hami_runtime.telemetry import Telemetry
from tests.certificates import Authority
from tests.contract.bus.conftest import NatsServer
from tests.contract.bus.test_bus import LOG, a_message, taken

pytestmark = pytest.mark.nats

ACCOUNT, OPERATOR, USER, SEED = 0, 14 << 3, 20 << 3, 18 << 3  # first bytes, which show as A, O, U and S


async def publish_through(bus: jetstream.JetStreamBus, subject: str, text: str) -> None:
    """Publish until it is kept, as an outbox does."""
    async with asyncio.timeout(30):
        while True:
            try:
                await bus.publish(a_message(subject, text, message_id=text), timeout_seconds=2)
            except BusUnavailable:
                await asyncio.sleep(0.02)
            else:
                return


async def test_a_process_may_start_before_its_bus(make_server: Callable[..., NatsServer]) -> None:
    server = make_server()
    await server.start()
    await server.kill()
    telemetry = Telemetry("test")
    async with jetstream.connect(server.url, name="test", telemetry=telemetry) as bus:
        await bus.ensure_streams([LOG])
        assert not bus.connected
        with pytest.raises(BusUnavailable):
            await bus.publish(a_message("log.a"))
        async with bus.consume(LOG, subjects=["log.>"], durable="d") as deliveries:
            await asyncio.sleep(0.3)
            await server.start()
            async with asyncio.timeout(20):
                await bus.wait_connected()
            await bus.publish(a_message("log.a", "one"))
            assert await taken(deliveries, 1) == ["one"]
        text = telemetry.prometheus_text().decode()
        assert "hami_bus_connected 1.0" in text
        assert 'hami_bus_connection_attempts_total{outcome="failed"}' in text


async def test_a_stream_that_is_missing_is_reported_once(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hami_runtime.bus.pulling._RETRY_SECONDS", 0.02)
    with structlog.testing.capture_logs() as logs:
        async with jetstream.connect(server.url, name="test") as bus:
            await bus.wait_connected()
            async with bus.consume(LOG, subjects=["log.>"]) as deliveries:
                await asyncio.sleep(0.5)
                await bus.ensure_streams([LOG])
                await bus.publish(a_message("log.a", "one"))
                assert await taken(deliveries, 1) == ["one"]
    missing = [entry["log_level"] for entry in logs if entry["event"] == "the stream is not there yet"]
    assert len(missing) > 2
    assert missing == ["info"] + ["debug"] * (len(missing) - 1)


async def test_over_kills_of_the_server_nothing_is_lost_and_order_is_kept(server: NatsServer) -> None:
    wanted = [str(n) for n in range(120)]
    async with jetstream.connect(server.url, name="test") as bus:
        await bus.ensure_streams([LOG])
        await bus.wait_connected()

        async def publish() -> None:
            for text in wanted:
                if text in {"40", "80"}:
                    await server.kill()
                    group.create_task(server.start())
                await publish_through(bus, "log.a", text)

        async with (
            bus.consume(LOG, subjects=["log.>"]) as reader,
            bus.consume(LOG, subjects=["log.>"], durable="d", ack_wait_seconds=1) as durable,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(publish())
            reading = group.create_task(taken(reader, 120))
            seen: list[str] = []
            async with asyncio.timeout(30):
                while len(set(seen)) < 120:
                    seen += await taken(durable, 1)
            assert await reading == wanted
            assert list(dict.fromkeys(seen)) == wanted


async def test_a_server_that_lost_its_data_gets_its_streams_again_and_is_read_from_the_start(
    make_server: Callable[..., NatsServer], server: NatsServer
) -> None:
    async with jetstream.connect(server.url, name="test") as bus:
        await bus.ensure_streams([LOG])
        await bus.wait_connected()
        async with bus.consume(LOG, subjects=["log.>"]) as deliveries:
            for text in ("one", "two", "three"):
                await bus.publish(a_message("log.a", text))
            assert await taken(deliveries, 3) == ["one", "two", "three"]
            await server.kill()
            fresh = make_server()
            fresh.port = server.port
            await fresh.start()
            await publish_through(bus, "log.a", "four")
            assert await taken(deliveries, 1) == ["four"]


async def test_a_stream_removed_under_us_is_made_again(server: NatsServer) -> None:
    async with jetstream.connect(server.url, name="test") as bus:
        await bus.ensure_streams([LOG])
        await bus.wait_connected()
        await bus.publish(a_message("log.a", "one"))
        await (await bus.session()).ask("$JS.API.STREAM.DELETE.LOG", b"", timeout_seconds=5)
        assert await bus.publish(a_message("log.a", "two")) == 1


async def test_settings_that_others_made_stay(server: NatsServer) -> None:
    async with jetstream.connect(server.url, name="test") as bus:
        await bus.wait_connected()
        session = await bus.session()
        made = {"name": "LOG", "subjects": ["log.a"], "max_bytes": 1_000_000, "storage": "memory"}
        await session.ask("$JS.API.STREAM.CREATE.LOG", json.dumps(made).encode(), timeout_seconds=5)
        await bus.ensure_streams([StreamSpec(name="LOG", subjects=("log.>",), max_messages_per_subject=5, duplicate_window_seconds=60)])
        found = json.loads((await session.ask("$JS.API.STREAM.INFO.LOG", b"", timeout_seconds=5)).data)["config"]
        assert (found["subjects"], found["max_msgs_per_subject"], found["duplicate_window"]) == (["log.>"], 5, 60_000_000_000)
        assert (found["max_bytes"], found["storage"]) == (1_000_000, "memory")


async def test_who_may_not_publish_is_told_so(make_server: Callable[..., NatsServer], tmp_path: Path) -> None:
    configuration = tmp_path / "nats.conf"
    configuration.write_text(
        'authorization { users = [ {user: all, password: a}, {user: agent, password: b, permissions: {publish: ["log.mine", "$JS.API.>"]}} ] }'
    )
    server = make_server("-c", str(configuration))
    await server.start()
    async with (
        jetstream.connect(server.url, name="all", credentials=Credentials(user="all", password="a")) as everyone,
        jetstream.connect(server.url, name="agent", credentials=Credentials(user="agent", password="b")) as agent,
    ):
        await everyone.ensure_streams([LOG])
        await everyone.wait_connected()
        await agent.wait_connected()
        assert await agent.publish(a_message("log.mine")) == 1
        with pytest.raises(MessageRefused, match=r"log\.Other"):
            await agent.publish(a_message("log.Other"))
        assert agent.connected


async def test_a_wrong_password_is_no_reason_to_give_up(make_server: Callable[..., NatsServer]) -> None:
    server = make_server("--auth", "secret")
    await server.start()
    telemetry = Telemetry("test")
    async with jetstream.connect(server.url, name="test", credentials=Credentials(token="wrong"), telemetry=telemetry) as bus:
        await asyncio.sleep(0.5)
        assert not bus.connected
        failed = [line for line in telemetry.prometheus_text().decode().splitlines() if 'outcome="failed"' in line]
        assert float(failed[0].rpartition(" ")[2]) >= 2


async def test_a_token_is_read_again_from_its_file(make_server: Callable[..., NatsServer], tmp_path: Path) -> None:
    server = make_server("--auth", "secret")
    await server.start()
    token = tmp_path / "token"
    async with jetstream.connect(server.url, name="test", credentials=Credentials(token_file=str(token))) as bus:
        await asyncio.sleep(0.05)
        token.write_text("secret\n")
        async with asyncio.timeout(20):
            await bus.wait_connected()


async def test_a_creds_file_opens_the_door(make_server: Callable[..., NatsServer], tmp_path: Path) -> None:
    user = Key(USER)
    account, system, operator = Key(ACCOUNT), Key(ACCOUNT), Key(OPERATOR)
    plain = dict.fromkeys(("subs", "conn", "data", "payload"), -1)
    stored = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
    accounts = [
        f'{each.public}: "{operator.signed(each, {"type": "account", "version": 2, "limits": limits})}"'
        for each, limits in ((account, plain | stored), (system, plain))
    ]
    operator_jwt = operator.signed(operator, {"type": "operator", "version": 2, "system_account": system.public})
    user_jwt = account.signed(user, {"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1})
    configuration = tmp_path / "nats.conf"
    configuration.write_text(f'operator: "{operator_jwt}"\nresolver: MEMORY\nresolver_preload: {{ {", ".join(accounts)} }}\n')
    server = make_server("-c", str(configuration))
    await server.start()
    creds = tmp_path / "user.creds"
    creds.write_text(
        f"-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
    )
    async with jetstream.connect(server.url, name="test", credentials=Credentials(creds_file=str(creds))) as bus:
        async with asyncio.timeout(20):
            await bus.wait_connected()


async def test_a_connection_may_be_encrypted(make_server: Callable[..., NatsServer], tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("nats")
    server = make_server("--tls", "--tlscert", str(certificate), "--tlskey", str(key))
    await server.start()
    context = ssl.create_default_context(cafile=str(authority.certificate))
    async with jetstream.connect(server.url, name="test", tls=context) as bus:
        await bus.ensure_streams([LOG])
        async with asyncio.timeout(20):
            await bus.wait_connected()
        assert await bus.publish(a_message("log.a")) == 1


class Key:
    """An Ed25519 key in NATS' own encoding, and the JWTs that it signs."""

    def __init__(self, kind: int) -> None:
        self._key = Ed25519PrivateKey.generate()
        raw = self._key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        self.public = _encoded(bytes([kind]) + raw)
        private = self._key.private_bytes(serialization.Encoding.Raw, serialization.PrivateFormat.Raw, serialization.NoEncryption())
        first = SEED | (kind >> 5)
        self.seed = _encoded(bytes([first, (kind & 31) << 3]) + private)

    def signed(self, subject: "Key", claims: dict[str, object]) -> str:
        header = {"typ": "JWT", "alg": "ed25519-nkey"}
        body = {"jti": os.urandom(8).hex(), "iat": 1_700_000_000, "iss": self.public, "name": "t", "sub": subject.public, "nats": claims}
        text = ".".join(_base64url(json.dumps(part).encode()) for part in (header, body))
        return f"{text}.{_base64url(self._key.sign(text.encode()))}"


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _encoded(data: bytes) -> str:
    crc = 0
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = ((crc << 1) ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return base64.b32encode(data + crc.to_bytes(2, "little")).rstrip(b"=").decode()
