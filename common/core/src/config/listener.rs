//! The tables `[[listen]]` and `[admin]`, which all processes spell alike.

use std::net::SocketAddr;

use crate::config::Env;
use crate::decode::Object;
use crate::secret::Secret;

/// Minimum bytes of the secret of the admin routes.
const MIN_TOKEN_BYTES: usize = 32;

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
    read_admin_with(root, default, env, |_| {})
}

/// Reads the table `[admin]` as [`read_admin`] does, with further keys of a process.
#[must_use]
pub fn read_admin_with(
    root: &Object<'_>,
    default: Option<SocketAddr>,
    env: &Env,
    further: impl FnOnce(&Object<'_>),
) -> Option<AdminListener> {
    let read = |admin: &Object<'_>| {
        further(admin);
        let address = match default {
            Some(default) => admin.or("address", default, |field| field.socket_addr()),
            None => admin.required("address", |field| field.socket_addr())?,
        };
        let hosts = admin.or("hosts", Vec::new(), |field| {
            field.array(|item| item.text(1..=253))
        });
        let token = read_token(admin, env);
        Some(AdminListener {
            address,
            hosts,
            token,
        })
    };
    root.section("admin", read).or_else(|| {
        default.map(|address| AdminListener {
            address,
            hosts: Vec::new(),
            token: None,
        })
    })
}

/// Reads `token_env` of the table `[admin]`: the variable with the secret.
fn read_token(admin: &Object<'_>, env: &Env) -> Option<Secret> {
    let variable = admin.optional("token_env", |field| field.text(1..=128))?;
    match env.required_secret(&variable) {
        Ok(token) if token.expose().len() >= MIN_TOKEN_BYTES => Some(token),
        Ok(_) => {
            let detail = format!("{variable} must have at least {MIN_TOKEN_BYTES} characters");
            admin.fail("invalid_length", detail);
            None
        }
        Err(detail) => {
            admin.fail("invalid_secret", detail);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    const DEFAULT: &str = "127.0.0.1:1";
    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

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
            parse("x.toml", text, |root| {
                root.section("admin", |admin| Some(read_token(admin, &env)))
            })
            .map_err(|exit| exit.message().to_owned())
        };
        assert!(read(&[("TOKEN", TOKEN)]).is_ok());
        let short = read(&[("TOKEN", "short")]).expect_err("refused");
        assert!(short.contains("at least 32 characters"), "{short}");
        let missing = read(&[]).expect_err("refused");
        assert!(missing.contains("TOKEN is not set"), "{missing}");
    }
}
