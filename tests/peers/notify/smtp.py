"""A mail server with configurable faults, based on aiosmtpd. See ./run.

smtp.py [CERT KEY USER PASSWORD]: prints `port N`, and then each accepted message as a JSON object per line. With a
certificate it requires STARTTLS and the user. The name in a client's first EHLO selects a fault: `rcpt.451.test` answers
RCPT with 451, `data.hang.test` never answers DATA, `dot.drop.test` closes the connection after the final dot. A recipient
at `451-550.test` is answered with 451 at first, and then with 550.
"""

import asyncio
import json
import ssl
import sys
from email import message_from_bytes, policy

from aiosmtpd.smtp import SMTP, AuthResult, LoginPassword


class Server(SMTP):
    fault = ("", "")
    greylisted = set()

    async def stumble(self, verb):
        """Returns whether the command was answered with the configured fault."""
        wanted, action = self.fault
        if wanted != verb:
            return False
        if action == "hang":
            await asyncio.sleep(3600)
        elif action == "drop":
            self.transport.abort()
        else:
            await self.push(f"{action} {action[0]}.3.0 as you wish")
        return True

    async def smtp_EHLO(self, hostname):
        parts = (hostname or "").split(".")
        if len(parts) == 3 and parts[2] == "test":
            self.fault = (parts[0], parts[1])
        if not await self.stumble("ehlo"):
            await super().smtp_EHLO(hostname)

    async def smtp_STARTTLS(self, arg):
        if not await self.stumble("starttls"):
            await super().smtp_STARTTLS(arg)

    async def smtp_AUTH(self, arg):
        if not await self.stumble("auth"):
            await super().smtp_AUTH(arg)

    async def smtp_MAIL(self, arg):
        if not await self.stumble("mail"):
            await super().smtp_MAIL(arg)

    async def smtp_RCPT(self, arg):
        if "@451-550.test>" in arg:
            await self.push("550 5.1.1 no such mailbox" if arg in self.greylisted else "451 4.7.1 greylisted, try again")
            self.greylisted.add(arg)
        elif not await self.stumble("rcpt"):
            await super().smtp_RCPT(arg)

    async def smtp_DATA(self, arg):
        if not await self.stumble("data"):
            await super().smtp_DATA(arg)


class Handler:
    async def handle_DATA(self, server, session, envelope):
        wanted, action = server.fault
        if wanted == "dot" and action == "hang":
            await asyncio.sleep(3600)
        if wanted == "dot" and action == "drop":
            server.transport.abort()
            return "250 nobody hears this"
        if wanted == "dot":
            return f"{action} {action[0]}.3.0 as you wish"
        mail = message_from_bytes(envelope.original_content, policy=policy.default)
        plain = mail.get_body(("plain",))
        taken = {
            "hello": session.host_name,
            "tls": session.ssl is not None,
            "user": session.auth_data.decode() if session.auth_data else None,
            "from": envelope.mail_from,
            "to": envelope.rcpt_tos,
            "heads": mail.keys(),
            "subject": mail["subject"],
            "text": plain.get_content() if plain else None,
        }
        print(json.dumps(taken), flush=True)
        return "250 2.0.0 taken"


def settings():
    if len(sys.argv) < 2:
        return {}
    cert, key, user, password = sys.argv[1:]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)

    def check(server, session, envelope, mechanism, data):
        good = isinstance(data, LoginPassword) and (data.login, data.password) == (user.encode(), password.encode())
        return AuthResult(success=good, handled=False, auth_data=data.login)

    return {"tls_context": context, "require_starttls": True, "auth_required": True, "authenticator": check}


async def main():
    loop = asyncio.get_running_loop()
    about = settings()
    server = await loop.create_server(lambda: Server(Handler(), loop=loop, **about), "127.0.0.1", 0)
    print("port", server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
