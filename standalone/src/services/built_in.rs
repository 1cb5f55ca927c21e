//! The built-in configuration files with the addresses and the folder of this installation. That of
//! the gateway is in the data folder, followed while the gateway runs, and kept once somebody has
//! edited it.

use std::path::{Path, PathBuf};

use postern_core::config::{self, Env};
use postern_core::exit::Exit;
use postern_dev::data_folder::{DataFolder, read_optional, write_private};
use postern_dev::{ADMIN_TOKEN, Addresses, landing_page_url, social_callback_url};
use postern_proxy::Config;
use serde_json::Value;

use crate::lifecycle::EnvironmentFile;

const PROXY: &str = concat!(
    include_str!("../../../conf/proxy.toml"),
    include_str!("../../../conf/proxy-local-pool.toml")
);
pub(super) const AUTH: &str = include_str!("../../../conf/auth.toml");
pub(super) const NOTIFY: &str = include_str!("../../../conf/notify.toml");
/// The built-in text of the last start. A file that equals it has not been edited.
const BUILT_IN_FILE: &str = "proxy.toml.built-in";
const ACCESS_LOG: &str = "access.log";
/// Size above which a start begins a new access log.
const MAX_ACCESS_LOG_BYTES: u64 = 64 << 20;

/// CORS origins on loopback hosts, any port.
const LOOPBACK_ORIGINS: &str = r#"["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*", "https://localhost:*",
  "https://127.0.0.1:*", "https://[::1]:*"]"#;

/// Returns the path of the gateway's file.
pub(super) fn gateway_path(folder: &DataFolder) -> PathBuf {
    folder.path().join("proxy.toml")
}

/// Renames an access log of more than [`MAX_ACCESS_LOG_BYTES`] to `access.log.1`, which it replaces.
///
/// # Errors
/// Status 69 if the folder is not writable.
pub(crate) fn limit_access_log(folder: &Path) -> Result<(), Exit> {
    let path = folder.join(ACCESS_LOG);
    let size = path.metadata().map_or(0, |metadata| metadata.len());
    if size <= MAX_ACCESS_LOG_BYTES {
        return Ok(());
    }
    std::fs::rename(&path, path.with_added_extension("1"))
        .map_err(|error| Exit::unavailable(format!("{}: {error}", path.display())))
}

/// Writes the gateway's file, unless it has been edited: then only the addresses of the last
/// start, as in `standalone.env`, are replaced by those of this one.
pub(crate) fn update_gateway(folder: &DataFolder, addresses: &Addresses) -> Result<PathBuf, Exit> {
    let (path, built_in_path) = (gateway_path(folder), folder.path().join(BUILT_IN_FILE));
    let built_in = proxy(folder, addresses);
    let current = read_optional(&path)?;
    let is_edited = current != read_optional(&built_in_path)?;
    let text = match current.clone() {
        Some(edited) if is_edited => {
            let previous = EnvironmentFile::read(folder.path()).unwrap_or_default();
            let url = |variable| Some(previous.get(variable)?.strip_prefix("http://")?.to_owned());
            let moves = parts(addresses).map(|(variable, _, to)| (url(variable), to));
            let moves = moves.into_iter().filter_map(|(from, to)| Some((from?, to)));
            match String::from_utf8(edited) {
                Ok(text) => move_addresses(&text, moves).into_bytes(),
                // The reader of the file reports it.
                Err(not_utf8) => not_utf8.into_bytes(),
            }
        }
        Some(_) | None => built_in.clone().into_bytes(),
    };
    if current.as_ref() != Some(&text) {
        write_private(&path, &text)?;
    }
    write_private(&built_in_path, built_in.as_bytes())?;
    Ok(path)
}

/// Reads the gateway's file.
pub(super) fn read_gateway(path: &Path, env: &Env) -> Result<Config, Exit> {
    config::load(path, |root| {
        let config = Config::read(root, env)?;
        if config.listen.len() > 1 {
            let detail = "must have one entry, whose address is that of --listen and --port";
            root.fail_at("listen", "fixed_field", detail);
            return None;
        }
        Some(config)
    })
}

/// Returns the configuration of the gateway.
pub(super) fn proxy(folder: &DataFolder, addresses: &Addresses) -> String {
    let access_log = quoted(folder.path().join(ACCESS_LOG).display().to_string());
    let origins = "origins = [\"https://app.example.com\", \"http://localhost:*\"]";
    // A developer does not wait for the drain times of production.
    let drain_times = "linger = \"0s\"\ndrain = \"500ms\"".to_owned();
    let changes = [
        ("to = \"stdout\"", format!("to = {access_log}")),
        ("# [defaults.cors]\n# ", "[defaults.cors]\n".to_owned()),
        (origins, format!("origins = {LOOPBACK_ORIGINS}")),
        ("linger = \"1s\"\ndrain = \"30s\"", drain_times),
    ];
    installed(PROXY, &changes, addresses)
}

/// Returns the configuration of the authentication upstream.
pub(super) fn auth(folder: &DataFolder, addresses: &Addresses) -> String {
    let issuer = format!("http://{}", addresses.social);
    let redirect_uri = "\"http://127.0.0.1:8500/auth/social/login/callback\"";
    let database = quoted(folder.database("auth.db"));
    let landing_page = quoted(landing_page_url(addresses));
    let domains = "# authoritative_domains = [\"gmail.com\", \"googlemail.com\"]";
    let own_domains = "authoritative_domains = [\"example.com\"]".to_owned();
    // The parameters are Google's; the development provider does not use them.
    let parameters = "access_type = \"offline\"\nprompt = \"consent\"\n";
    let changes = [
        ("\"sqlite://var/auth.db\"", database),
        ("\"google\"", quoted("development")),
        ("\"https://accounts.google.com\"", quoted(issuer)),
        (redirect_uri, quoted(social_callback_url(addresses))),
        ("\"http://127.0.0.1:8500/\"", landing_page),
        (domains, own_domains),
        (parameters, String::new()),
    ];
    installed(AUTH, &changes, addresses)
}

/// Returns the configuration of the notification upstream, whose templates are in a folder.
pub(super) fn notify(folder: &DataFolder, templates: &Path, addresses: &Addresses) -> String {
    let subfolder = |name| quoted(folder.path().join(name).display().to_string());
    let (ip, port) = (addresses.smtp.ip(), addresses.smtp.port());
    let smtp = format!("host = \"{ip}\"\nport = {port}");
    let database = quoted(folder.database("notify.db"));
    let templates = quoted(templates.display().to_string());
    let changes = [
        ("\"sqlite://var/notify.db\"", database),
        ("\"conf/templates\"", templates),
        ("host = \"127.0.0.1\"\nport = 8507", smtp),
        ("\"var/sms\"", subfolder("sms")),
        ("\"var/push\"", subfolder("push")),
    ];
    installed(NOTIFY, &changes, addresses)
}

/// Returns a TOML string: JSON has the same escapes.
fn quoted(text: impl Into<Value>) -> String {
    text.into().to_string()
}

/// Applies the changes of one file, and those of all.
fn installed(text: &str, changes: &[(&str, String)], addresses: &Addresses) -> String {
    let token = format!("[admin]\ntoken_env = \"{ADMIN_TOKEN}\"\n");
    let token = ("[admin]\n", token);
    let changes = changes.iter().chain([&token]);
    let text = changes.fold(text.to_owned(), |text, (from, to)| {
        debug_assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    });
    let moves = parts(addresses).map(|(_, port, to)| (format!("127.0.0.1:{port}"), to));
    move_addresses(&text, moves)
}

/// Returns the parts: variable of `standalone.env`, port in the built-in files, and address.
pub(crate) fn parts(to: &Addresses) -> [(&'static str, u16, String); 12] {
    [
        ("POSTERN_URL", 8500, to.proxy),
        ("POSTERN_AUTH_URL", 8501, to.auth),
        ("POSTERN_NOTIFY_URL", 8502, to.notify),
        ("POSTERN_IDENTITY_POOL_URL", 8503, to.identity_pool),
        ("POSTERN_ACTOR_URL", 8504, to.actor),
        ("POSTERN_DOCUMENT_URL", 8505, to.document),
        ("POSTERN_SOCIAL_URL", 8506, to.social),
        ("POSTERN_MAIL_URL", 8508, to.mail),
        ("POSTERN_PROXY_ADMIN_URL", 8509, to.proxy_admin),
        ("POSTERN_AUTH_ADMIN_URL", 8510, to.auth_admin),
        ("POSTERN_NOTIFY_ADMIN_URL", 8511, to.notify_admin),
        ("POSTERN_CONSOLE_URL", 8512, to.console),
    ]
    .map(|(variable, port, to)| (variable, port, to.to_string()))
}

/// Replaces addresses at the end of strings. All at once, because the new address of one part may be the previous
/// one of another.
fn move_addresses(text: &str, moves: impl IntoIterator<Item = (String, String)>) -> String {
    let moves: Vec<_> = moves.into_iter().enumerate().collect();
    let marked = moves.iter().fold(text.to_owned(), |text, (at, (from, _))| {
        text.replace(&format!("{from}\""), &format!("\0{at}\""))
    });
    moves.iter().fold(marked, |text, (at, (_, to))| {
        text.replace(&format!("\0{at}\""), &format!("{to}\""))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_addresses_may_overlap() {
        let moves = [("a:1", "a:2"), ("a:2", "a:3")];
        let moves = moves.map(|(from, to)| (from.to_owned(), to.to_owned()));
        let moved = move_addresses("x = [\"a:1\", \"http://a:2\", \"b:1\"] # a:1", moves);
        assert_eq!(moved, "x = [\"a:2\", \"http://a:3\", \"b:1\"] # a:1");
    }

    #[test]
    fn large_access_log_is_renamed_at_the_start() {
        let folder = tempfile::tempdir().expect("a folder");
        let [path, older] = ["access.log", "access.log.1"].map(|name| folder.path().join(name));
        limit_access_log(folder.path()).expect("no file");
        let file = std::fs::File::create(&path).expect("created");
        file.set_len(MAX_ACCESS_LOG_BYTES).expect("extended");
        limit_access_log(folder.path()).expect("stays");
        assert!(path.exists() && !older.exists());
        file.set_len(MAX_ACCESS_LOG_BYTES + 1).expect("extended");
        limit_access_log(folder.path()).expect("renamed");
        assert!(!path.exists() && older.exists());
    }
}
