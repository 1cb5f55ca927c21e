//! Store URLs without secrets.

use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use url::Url;

use postern_core::secret::has_misplaced_password;

/// Returns the URL without password and parameters. Text that is not a URL, or has its password in the
/// wrong place, is reduced to its scheme.
pub(crate) fn without_password(url: &str) -> String {
    match Url::parse(url) {
        Ok(mut parsed) if !has_misplaced_password(url) => {
            if parsed.password().is_some() {
                let _ = parsed.set_password(None);
            }
            parsed.set_query(None);
            parsed.set_fragment(None);
            parsed.to_string()
        }
        Ok(_) | Err(_) => url
            .split_once("://")
            .map_or("…".to_owned(), |(scheme, _)| format!("{scheme}://…")),
    }
}

/// Formats the URL of one or several servers that differ in host and port only.
pub(super) fn postgres(hosts: &[PgConnectOptions]) -> String {
    let address = |options: &PgConnectOptions| match options.get_socket() {
        Some(socket) => socket.display().to_string(),
        None if options.get_host().contains(':') => {
            format!("[{}]:{}", options.get_host(), options.get_port())
        }
        None => format!("{}:{}", options.get_host(), options.get_port()),
    };
    let Some(options) = hosts.first() else {
        return "postgres://".to_owned();
    };
    let address = hosts.iter().map(address).collect::<Vec<_>>().join(",");
    let name = options.get_database().unwrap_or(options.get_username());
    format!("postgres://{}@{address}/{name}", options.get_username())
}

pub(super) fn sqlite(options: &SqliteConnectOptions) -> String {
    format!("sqlite://{}", options.get_filename().display())
}
