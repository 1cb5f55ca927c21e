//! Client spans of calls to Redis. They have no key and no value.

use std::borrow::Cow;

use redis::{Arg, Cmd, RedisError};
use tokio::time::error::Elapsed;
use url::Url;

use postern_core::trace::{ActiveSpan, KeyValue, client_span, set_server};

/// The answer of a call under a deadline.
type Answer<T> = Result<Result<T, RedisError>, Elapsed>;

/// Performs a call within a client span. `label` is the URL of the server without password.
pub(super) async fn in_span<T>(
    operation: &'static str,
    label: &str,
    call: impl Future<Output = Answer<T>>,
) -> Answer<T> {
    client_span(
        operation,
        |span| describe(span, operation, label),
        call,
        error_type,
    )
    .await
}

/// Returns the name of a command, as `db.operation.name`.
pub(super) fn operation(command: &Cmd) -> &'static str {
    match command.args_iter().next() {
        Some(Arg::Simple(b"GET")) => "GET",
        Some(Arg::Simple(b"SET")) => "SET",
        Some(Arg::Simple(b"GETDEL")) => "GETDEL",
        Some(Arg::Simple(b"DEL")) => "DEL",
        _ => "_OTHER",
    }
}

/// Sets the attributes. The URL of a cluster or of sentinels names several servers, of which the
/// one that answers is not known here.
fn describe(span: &mut ActiveSpan, operation: &'static str, label: &str) {
    span.set(KeyValue::new("db.system.name", "redis"));
    span.set(KeyValue::new("db.operation.name", operation));
    let Ok(url) = Url::parse(label) else { return };
    if !matches!(url.scheme(), "redis" | "rediss") {
        return;
    }
    set_server(
        span,
        url.host_str().unwrap_or_default(),
        url.port().or(Some(6379)),
    );
    let database = match url.path().trim_matches('/') {
        "" => "0",
        index => index,
    };
    span.set(KeyValue::new("db.namespace", database.to_owned()));
}

fn error_type<T>(answer: &Answer<T>) -> Option<Cow<'static, str>> {
    match answer {
        Ok(Ok(_)) => None,
        Ok(Err(error)) if error.is_timeout() => Some("timeout".into()),
        Ok(Err(error)) if error.is_connection_refusal() => Some("connect".into()),
        Ok(Err(error)) => Some(error.code().unwrap_or("_OTHER").to_owned().into()),
        Err(_) => Some("timeout".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_is_the_command_without_its_key() {
        let get = redis::cmd("GET").arg("postern:secret-key").take();
        assert_eq!(operation(&get), "GET");
        let unknown = redis::cmd("EVIL").arg("postern:secret-key").take();
        assert_eq!(operation(&unknown), "_OTHER");
    }
}
