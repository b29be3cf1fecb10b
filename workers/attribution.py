"""Builds the attribution providers from the configuration."""

from __future__ import annotations

from activities.attribution.asking import Access
from activities.attribution.chat import ChatModel
from activities.attribution.provider import Attributors, Provider, Terms
from activities.attribution.service import AttributionService
from recovery.masking import MaskRules
from workers.settings import Settings
from workers.settings_attribution import MaskSettings, ProviderSettings


def attributors(settings: Settings) -> Attributors | None:
    """Who is asked about a fault; None where nobody is configured."""
    given = settings.attribution
    providers: list[Provider] = []
    if given.http is not None:
        one = given.http
        terms = _terms("http", one, given.mask)
        providers.append(AttributionService(terms, _access("http", one), send_evidence=one.send_evidence))
    if given.chat is not None:
        chat = given.chat
        terms = _terms("chat", chat, given.mask, log_lines=chat.log_lines)
        providers.append(ChatModel(terms, _access("chat", chat), model=chat.model, structured=chat.structured))
    return Attributors(tuple(providers), fast_s=given.fast_s, slow_s=given.slow_s) if providers else None


def _terms(name: str, given: ProviderSettings, mask: MaskSettings, *, log_lines: int = 0) -> Terms:
    rules = MaskRules(secrets=mask.secrets, paths=mask.paths, users=mask.users, more=mask.more)
    return Terms(name=name, trust=given.trust, may_stop=given.may_stop, mask=rules, log_lines=log_lines)


def _access(name: str, given: ProviderSettings) -> Access:
    return Access(
        key=f"attribution.{name}",
        url=given.url,
        token=given.token.get_secret_value() if given.token is not None else "",
        token_file=given.token_file,
        headers={header: value.get_secret_value() for header, value in given.headers.items()},
        verify=given.verify,
        server_ca=given.server_ca,
        client_cert=given.client_cert,
        client_key=given.client_key,
        max_answer_bytes=given.max_answer_kb << 10,
    )
