//! The text printed after a successful start: addresses, and commands to try.

use std::time::Duration;

use crate::lifecycle::{ENVIRONMENT_FILE_NAME, Running};

/// Returns the text for the terminal. `program` is the path of this executable, for commands that
/// run it again.
#[must_use]
pub fn greeting(running: &Running, program: &str, took: Duration) -> String {
    let Some(addresses) = running.addresses() else {
        return format!(
            "Postern is ready after {} ms, as configured in the configuration files.\n",
            took.as_millis()
        );
    };
    let folder = running.variable("POSTERN_DATA_DIR").unwrap_or_default();
    let (gateway, pool) = (addresses.proxy, addresses.identity_pool);
    let (mail, smtp, social) = (addresses.mail, addresses.smtp, addresses.social);
    let (auth, notify) = (addresses.auth, addresses.notify);
    let (actor, document) = (addresses.actor, addresses.document);
    let config = running.variable("POSTERN_PROXY_CONFIG").unwrap_or_default();
    let console = running.console_link().map_or_else(String::new, |link| {
        format!(
            "  console          {}\n                   signs in as operator, once within 24 hours; for another:\n                   {program} console-link --data-dir '{folder}'\n",
            link.expose()
        )
    });
    format!(
        r#"Postern is ready after {ms} ms. Ctrl-C stops it. Its data is in {folder}

  gateway          http://{gateway}        the only address that clients use
{console}  mail             http://{mail}        every mail that is sent, by SMTP to {smtp}
  social provider  http://{social}        asks which person to be
  behind it        authentication {auth}, notifications {notify}, identity pool {pool},
                   sample services: actors {actor}, documents {document}
  configuration    {config}  the gateway's; edit it, or in the console

Try this in another shell:

  . '{folder}/{ENVIRONMENT_FILE_NAME}'
  EMAIL=ada-$(date +%s)@example.com
  TOKENS=$(curl -s $POSTERN_URL/auth/register -H 'Content-Type: application/json' \
    -d '{{"email":"'$EMAIL'","password":"Correct horse battery 9","profile":{{"firstName":"Ada"}}}}'); echo "$TOKENS"
  AUTH="Authorization: Bearer $(echo "$TOKENS" | sed 's/.*"accessToken":"\([^"]*\)".*/\1/')"
  curl -sw '\n' $POSTERN_URL/auth/me -H "$AUTH"
  ID=$(curl -s $POSTERN_URL/auth/me -H "$AUTH" | sed 's/.*"userId":"\([^"]*\)".*/\1/')
  curl -sw '\n' $POSTERN_URL/actors/$ID -H "$AUTH"
  head -c 5000000 /dev/urandom > /tmp/resume.pdf
  curl -sw '\n' $POSTERN_URL/resumes -H "$AUTH" -F candidateId=$ID -F resume=@/tmp/resume.pdf
  curl -sw '\n' $POSTERN_URL/notifications -H "$AUTH" -H 'Content-Type: application/json' \
    -d '{{"channel":"email","recipient":{{"actorId":"'$ID'"}},"template":"welcome","variables":{{"name":"Ada"}}}}'
  curl -sw '\n' "$POSTERN_MAIL_URL/messages?to=$EMAIL&waitSeconds=5"
  {program} token --service document --data-dir '{folder}'

Sign in with the social provider: open http://{gateway}/auth/social/login in a browser; the page at the end shows
the command that exchanges the temporary token.
"#,
        ms = took.as_millis(),
    )
}
