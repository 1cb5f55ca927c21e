//! The tables `[[listen]]` and `[admin]`, which all processes spell alike.

use std::net::SocketAddr;

use crate::config::{Env, secret};
use crate::decode::{Field, Node, Object, Value};
use crate::secret::Secret;
use crate::settings;

/// Minimum bytes of the secret of the admin routes.
const MIN_TOKEN_BYTES: usize = 32;

settings! {
    /// Listener for `/livez`, `/readyz`, `/metrics` and status pages; the gateway has none without
    /// this table. Read at start.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct AdminListener(admin, default: Option<&'static str>, env: &Env) {
        /// IP address and port; required for the gateway.
        pub address: SocketAddr = (read_address(admin, default)),
        /// `Host` values accepted besides [loopback names](../manual/gateway.md#admin-listener).
        ///
        /// If it does not listen on a loopback address, IP addresses are accepted as well. Any other
        /// `Host` is refused.
        pub hosts: Vec<String> = [] => |field| field.array(|item| item.typed("name").text(1..=253)),
        /// Bearer token of `/admin/`, at least 32 characters; without it these routes do not exist.
        pub token as token_env: Option<Secret> = None => |field| read_token(field, env),
    }
}

settings! {
    fn read_listener(listen) -> SocketAddr {
        /// IP address and port.
        address => |field| field.socket_addr(),
    } => address
}

/// Reads the one `[[listen]]` table of a service.
#[must_use]
pub fn read_listen(root: &Object<'_>, default: &'static str) -> SocketAddr {
    let doc = "Listener for clients, exactly one table. Read at start.";
    root.declare("listen", module_path!(), &[doc], "");
    let address = ("address".to_owned(), Node::new(default));
    let default = Value::Array(vec![Node::new(Value::Object(vec![address]))]);
    root.or_value("listen", default, |field| {
        let addresses = field.array(|item| item.object(read_listener))?;
        if addresses.len() > 1 {
            let detail = "must be one table: this service has one listener";
            return field.fail("out_of_range", detail);
        }
        addresses.first().copied()
    })
}

/// Reads the table `[admin]`. Without a default there is no admin listener unless the table exists.
#[must_use]
pub fn read_admin(
    root: &Object<'_>,
    default: Option<&'static str>,
    env: &Env,
) -> Option<AdminListener> {
    let read = |admin: &Object<'_>| AdminListener::read(admin, default, env);
    match default {
        Some(_) => root.or_empty("admin", |field| field.object(read)),
        None => root.section("admin", read),
    }
}

fn read_address(admin: &Object<'_>, default: Option<&'static str>) -> Option<SocketAddr> {
    let doc = "IP address and port; required for the gateway.";
    admin.declare("address", module_path!(), &[doc], "");
    match default {
        Some(default) => Some(admin.or_value("address", default, |field| field.socket_addr())),
        None => admin.required("address", |field| field.socket_addr()),
    }
}

fn read_token(field: Field<'_>, env: &Env) -> Option<Secret> {
    let token = secret(field, env)?;
    if token.expose().len() >= MIN_TOKEN_BYTES {
        return Some(token);
    }
    let detail = format!("must name a secret of at least {MIN_TOKEN_BYTES} characters");
    field.fail("invalid_length", detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    const DEFAULT: &str = "127.0.0.1:1";
    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    fn read(text: &str) -> Result<(SocketAddr, AdminListener), String> {
        let both = |root: &Object<'_>| {
            let listen = read_listen(root, DEFAULT);
            read_admin(root, Some(DEFAULT), &Env::default()).map(|admin| (listen, admin))
        };
        parse("x.toml", text, both).map_err(|exit| exit.message().to_owned())
    }

    #[test]
    fn listen_and_admin_have_defaults() {
        let (listen, admin) = read("").expect("good");
        assert_eq!(
            (listen.to_string(), admin.address.to_string()),
            (DEFAULT.into(), DEFAULT.into())
        );
        let text = "[[listen]]\naddress = '[::1]:8501'\n[admin]\nhosts = ['metrics.internal']\n";
        let (listen, admin) = read(text).expect("good");
        assert_eq!(listen.to_string(), "[::1]:8501");
        assert_eq!(
            (admin.address.to_string(), admin.hosts.len()),
            (DEFAULT.into(), 1)
        );
    }

    #[test]
    fn service_has_one_listener() {
        let text = "[[listen]]\naddress = '127.0.0.1:1'\n[[listen]]\naddress = '127.0.0.1:2'\n";
        let reason = "x.toml:1: listen: must be one table: this service has one listener";
        assert_eq!(read(text), Err(reason.to_owned()));
    }

    #[test]
    fn short_or_missing_secret_is_refused() {
        let read = |env: &[(&str, &str)]| {
            let env: Env = env.iter().copied().collect();
            let text = "[admin]\ntoken_env = 'TOKEN'\n";
            parse("x.toml", text, |root| read_admin(root, Some(DEFAULT), &env))
                .map_err(|exit| exit.message().to_owned())
        };
        assert!(read(&[("TOKEN", TOKEN)]).is_ok());
        let short = read(&[("TOKEN", "short")]).expect_err("refused");
        assert!(short.contains("at least 32 characters"), "{short}");
        let missing = read(&[]).expect_err("refused");
        assert!(missing.contains("TOKEN is not set"), "{missing}");
    }
}
