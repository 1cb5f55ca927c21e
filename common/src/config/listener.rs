//! The tables `[[listen]]` and `[admin]`, which all processes spell alike.

use std::net::SocketAddr;

use crate::admin_api;
use crate::config::Env;
use crate::decode::{Object, Value};
use crate::secret::Secret;

/// The table `[admin]`: the listener for `/livez`, `/readyz` and `/metrics`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminListener {
    /// Address and port.
    pub address: SocketAddr,
    /// Host names by which it may be called, besides loopback names and, if it does not listen on a
    /// loopback address, IP addresses; default none. Any other `Host` is refused.
    pub hosts: Vec<String>,
    /// The secret of the routes under `/admin/` (`token_env`); default none: they do not exist.
    pub token: Option<Secret>,
}

/// Reads the one `[[listen]]` table of a service.
#[must_use]
pub fn read_listen(root: &Object<'_>, default: SocketAddr) -> SocketAddr {
    let addresses = root.optional("listen", |field| {
        if let Value::String(_) = field.value() {
            return field.fail("renamed_field", "renamed to `[[listen]] address`");
        }
        let addresses = field.array(|item| {
            item.object(|listen| listen.required("address", |field| field.socket_addr()))
        })?;
        if addresses.len() > 1 {
            return field.fail(
                "out_of_range",
                "must be one table: this service has one listener",
            );
        }
        Some(addresses)
    });
    addresses
        .and_then(|addresses| addresses.first().copied())
        .unwrap_or(default)
}

/// Reads the table `[admin]`. Without a default there is no admin listener unless the table exists.
#[must_use]
pub fn read_admin(
    root: &Object<'_>,
    default: Option<SocketAddr>,
    env: &Env,
) -> Option<AdminListener> {
    root.renamed("admin_hosts", "[admin] hosts");
    let read = |admin: &Object<'_>| {
        let address = match default {
            Some(default) => admin.or("address", default, |field| field.socket_addr()),
            None => admin.required("address", |field| field.socket_addr())?,
        };
        let hosts = admin.or("hosts", Vec::new(), |field| {
            field.array(|item| item.text(1..=253))
        });
        let token = admin_api::read_token(admin, env);
        Some(AdminListener {
            address,
            hosts,
            token,
        })
    };
    let written = root.optional("admin", |field| {
        if let Value::String(_) = field.value() {
            return field.fail("renamed_field", "renamed to `[admin] address`");
        }
        field.object(read)
    });
    written.or_else(|| {
        default.map(|address| AdminListener {
            address,
            hosts: Vec::new(),
            token: None,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    const DEFAULT: &str = "127.0.0.1:1";

    fn read(text: &str) -> Result<(SocketAddr, AdminListener), String> {
        let default: SocketAddr = DEFAULT.parse().expect("an address");
        let both = |root: &Object<'_>| {
            let listen = read_listen(root, default);
            read_admin(root, Some(default), &Env::default()).map(|admin| (listen, admin))
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
    fn old_spelling_is_refused_with_the_new_one() {
        let text = "listen = '127.0.0.1:1'\nadmin = '127.0.0.1:2'\nadmin_hosts = ['a']\n";
        let expected = "x.toml:1: listen: renamed to `[[listen]] address`\n\
             x.toml:2: admin: renamed to `[admin] address`\n\
             x.toml:3: admin_hosts: renamed to `[admin] hosts`";
        assert_eq!(read(text), Err(expected.to_owned()));
    }

    #[test]
    fn service_has_one_listener() {
        let text = "[[listen]]\naddress = '127.0.0.1:1'\n[[listen]]\naddress = '127.0.0.1:2'\n";
        let reason = "x.toml:1: listen: must be one table: this service has one listener";
        assert_eq!(read(text), Err(reason.to_owned()));
    }
}
