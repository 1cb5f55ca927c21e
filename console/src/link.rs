//! One-time links for programs of this machine: a file with a secret that its owner and root can read.
//!
//! The secret is created at each start and serves no other purpose: another program may listen on the
//! port of the console later. Depends on `config`, `processes` and
//! `sessions`.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use postern_core::Secret;
use postern_core::exit::Exit;

use crate::config::Config;
use crate::processes::Reply;
use crate::sessions::random_secret;

/// Maximum time for the console to answer a request for a link.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes of that answer.
const MAX_ANSWER_BYTES: usize = 4096;

/// Creates the secret with which links are requested, and writes it to `sign_in.link_file`. Returns
/// `None` without that key, or if the file cannot be written: there are no links then.
pub(crate) fn create_secret(config: &Config) -> Option<Secret> {
    let file = config.sign_in.link_file.as_ref()?;
    let secret = random_secret().ok()?;
    let text = format!("{}\nhttp://{}\n", secret.expose(), config.listen);
    let write = || {
        // A new file, so that the mode and the owner are those of this process.
        let _absent = std::fs::remove_file(file);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        options.open(file)?.write_all(text.as_bytes())
    };
    match write() {
        Ok(()) => Some(secret),
        Err(error) => {
            tracing::info!(file = %file.display(), %error, "console links unavailable");
            None
        }
    }
}

/// Requests a one-time link from the running console that has written this file. Returns the link.
///
/// # Errors
/// Status 69 if the file cannot be read or no console answers.
pub async fn request(file: &Path) -> Result<Secret, Exit> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        let file = file.display();
        Exit::unavailable(format!("{file}: {error}. The console writes it at its start (sign_in.link_file); root and its user can read it"))
    })?;
    let (secret, base) = text.trim_end().split_once('\n').unwrap_or_default();
    let link = request_secret(base, secret).await?;
    Ok(Secret::new(format!("{base}/#once={}", link.expose())))
}

/// Requests the secret of a one-time link from the console at an address.
///
/// # Errors
/// Status 69 if no console answers there.
pub async fn request_secret(base: &str, secret: &str) -> Result<Secret, Exit> {
    let unavailable =
        |reason: &str| Exit::unavailable(format!("no link from the console at {base} ({reason})"));
    // What listens there may be another program by now.
    let request = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(TIMEOUT)
        .build()
        .map_err(|_| unavailable("cannot build an HTTP client"))?
        .post(format!("{base}/session/link"))
        .bearer_auth(secret);
    let answer = request.send().await;
    let answer = answer.map_err(|_| unavailable("cannot connect"))?;
    let reply = Reply::read(answer, MAX_ANSWER_BYTES).await;
    let reply = reply.map_err(|_| unavailable("not an answer of the console"))?;
    // Nothing else is printed to a terminal.
    let is_secret = |text: &&str| text.len() == 64 && text.bytes().all(|it| it.is_ascii_hexdigit());
    match reply.json()["secret"].as_str().filter(is_secret) {
        Some(secret) => Ok(Secret::from(secret)),
        None => Err(unavailable(&format!("status {}", reply.status))),
    }
}
