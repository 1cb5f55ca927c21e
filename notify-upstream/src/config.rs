//! Configuration of the notification service, from `conf/notify.toml` and the environment.
//!
//! Input: the decoded file and the environment. Output: plain settings, or all mistakes. Depends on
//! the types that the settings describe, in `address`, `delivery`, `notification`, `receipts` and
//! `templates`.

mod provider;
mod webhooks;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::time::Duration;

use postern_core::config::{AdminListener, Env, read_admin, read_listen};
use postern_core::decode::Object;
use postern_core::identity::IdentityConfig;
use postern_service::http::{BodyBudgets, TrustedProxies};
use postern_service::log::Log;
use postern_service::trace::TracingConfig;
use postern_store::database::{DEFAULT_CONNECTIONS, DatabaseOptions};
use url::Url;

use crate::delivery::mail_token::{KEY_VARIABLE, MailTokens};
use crate::delivery::pool::ProviderConfig;
use crate::notification::{Channel, PerChannel};
use crate::receipts::webhook::Webhooks;
use crate::templates::Locale;

/// The configuration of the notification service.
#[derive(Debug)]
pub struct Config {
    /// Address of the API. Default `127.0.0.1:8502`, reached through the gateway.
    pub listen: SocketAddr,
    /// Admin listener for `/livez`, `/readyz`, `/metrics` and, with a secret, the routes under
    /// `/admin/`. Default `127.0.0.1:8511`.
    pub admin: AdminListener,
    /// Log format and filter. Default JSON at `info`.
    pub(crate) log: Log,
    /// Export of OpenTelemetry spans (`[tracing]`). Default none.
    pub(crate) tracing: Option<TracingConfig>,
    /// The database. Default `sqlite://var/notify.db`. Overridden by `NOTIFY_DATABASE`, because the URL
    /// may contain a password.
    pub(crate) database: String,
    /// Maximum PostgreSQL connections for everything but the queue. Default 10.
    pub(crate) database_connections: u32,
    /// `redis://…`, `rediss://…`, a Cluster or Sentinel URL, or `memory:` for a single process.
    /// Default `memory:`. Overridden by `NOTIFY_CACHE`.
    pub(crate) cache: String,
    /// Base URL of the actor service, which resolves addresses. Default `http://127.0.0.1:8504`.
    pub(crate) actor_service: Url,
    /// Proxies whose `X-Forwarded-For` is used. Default: the addresses of this machine, for a
    /// gateway on the same host.
    pub(crate) trusted_proxies: TrustedProxies,
    pub(crate) identity: IdentityConfig,
    /// Template folder and default locale.
    pub(crate) templates: TemplateConfig,
    /// Queue limits and retention.
    pub(crate) queue: QueueConfig,
    /// Services that may read all notifications (`[access] readers`). Default none: a service reads
    /// those that it created.
    pub(crate) readers: Vec<String>,
    /// Whether users may send to recipients other than themselves. Default false, because otherwise
    /// every registered user could send e-mail to arbitrary addresses.
    pub(crate) users_may_address_anyone: bool,
    /// Whether users may send CRITICAL and HIGH, which take precedence over the NORMAL of other
    /// callers. Default false.
    pub(crate) users_may_send_urgent: bool,
    /// Channels on which a user may send to an address of their own that the actor service does not
    /// report as verified (`emailVerified`, `phoneVerified`, `deviceVerified`). Default none,
    /// because users can write any address into their profile. A template can allow it with a quota
    /// (`unverified_addresses` in its `template.toml`).
    pub(crate) unverified_addresses: PerChannel<bool>,
    /// Maximum number of notifications per user and minute, also of those with `sendAt` in one minute.
    /// Default 600, because users send to themselves only.
    pub(crate) user_quota: Option<u64>,
    /// Maximum number of notifications per service and minute. Default unlimited.
    pub(crate) service_quota: Option<u64>,
    /// Webhook receivers and their public URL.
    pub(crate) webhooks: Webhooks,
    /// Keys for unsubscribe links and delivery reports: `NOTIFY_TOKEN_KEY`, base64 of at least 32
    /// bytes. To rotate, put the new key before the old one, separated by a comma. Without keys,
    /// e-mail has no unsubscribe link and delivery reports are rejected.
    pub(crate) mail_tokens: Option<MailTokens>,
    /// The providers in the order of the file.
    pub(crate) providers: Vec<ProviderConfig>,
}

/// Template folder and default locale.
#[derive(Clone, Debug)]
pub(crate) struct TemplateConfig {
    /// The folder. Default `conf/templates`.
    pub(crate) folder: PathBuf,
    /// Locale used if none is requested or the requested one is not available. Default `en`.
    pub(crate) default_locale: Locale,
}

/// Queue limits and retention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueConfig {
    /// Number of PostgreSQL connections for the queue. Default 6: one for inserts, one for results,
    /// one per channel for claims, one for reads.
    pub(crate) connections: u32,
    /// Maximum number of concurrent deliveries. Default 64 each, the default concurrency of a
    /// provider.
    pub(crate) permits: PerChannel<usize>,
    /// Bytes of complete request bodies that wait for their commit; as many again may be arriving.
    /// Requests beyond the budget get 503. Default 16 MiB, minimum 2 MiB. Services have half of it,
    /// users a quarter, callers without a token and webhooks an eighth each, and each part at least
    /// one body. Parsed data may take 25 times the bytes of its body.
    pub(crate) bodies: BodyBudgets,
    /// Retention of records and results. Default 90 days, minimum 40, because a notification can be
    /// scheduled 30 days ahead.
    pub(crate) retention: Duration,
}

const DEFAULT_LISTEN_ADDRESS: SocketAddr =
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8502));
const DEFAULT_ADMIN_ADDRESS: SocketAddr =
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8511));

// === impl Config ===

impl Config {
    /// Returns the options of the database.
    pub(crate) fn database_options(&self) -> DatabaseOptions {
        DatabaseOptions {
            max_connections: self.database_connections,
            ..DatabaseOptions::new("postern-notify")
        }
    }

    /// Reads the configuration and records every error.
    pub fn read(root: &Object<'_>, env: &Env) -> Option<Self> {
        let listen = read_listen(root, DEFAULT_LISTEN_ADDRESS);
        let admin = read_admin(root, Some(DEFAULT_ADMIN_ADDRESS), env);
        let log = Log::read(root, env);
        let text = |name, variable, default: &str| {
            let written = root.optional(name, |field| field.text(1..=1024));
            let set = env.optional_secret(root, variable).flatten();
            set.map(|url| url.expose().to_owned())
                .or(written)
                .unwrap_or_else(|| default.to_owned())
        };
        let database = text("database", "NOTIFY_DATABASE", "sqlite://var/notify.db");
        let database_connections = root.or("database_connections", DEFAULT_CONNECTIONS, |field| {
            field.integer(3..=1000)
        });
        let cache = text("cache", "NOTIFY_CACHE", "memory:");
        let actors = Url::parse("http://127.0.0.1:8504").expect("the default URL is valid");
        let actor_service = root.or("actor_service", actors, |field| field.url());
        let identity = IdentityConfig::read(root, env);
        let templates = root
            .section("templates", read_templates)
            .unwrap_or_else(TemplateConfig::new);
        let queue = root
            .section("queue", read_queue)
            .unwrap_or_else(QueueConfig::new);
        let quota = |name| root.optional(name, |field| field.integer(1..=1_000_000_000_u64));
        let (user_quota, service_quota) =
            (quota("user_quota").or(Some(600)), quota("service_quota"));
        let public_url = root.optional("public_url", |field| field.url());
        let webhooks = webhooks::read(root, env, public_url.as_ref());
        let readers = root.section("access", |access| {
            Some(access.list("readers", |field| field.text(1..=128)))
        });
        let users_may_address_anyone =
            root.or("users_may_address_anyone", false, |field| field.boolean());
        let users_may_send_urgent =
            root.or("users_may_send_urgent", false, |field| field.boolean());
        let unverified_addresses = read_channels(root, "unverified_addresses");
        let mail_tokens = read_mail_tokens(root, env);
        let providers = root.list("provider", |field| {
            field.object(|object| {
                ProviderConfig::read(object, env, public_url.as_ref(), mail_tokens.as_ref())
            })
        });
        provider::check_unique_names(root, &providers);
        Some(Self {
            listen,
            admin: admin?,
            log,
            tracing: TracingConfig::read_optional(root, env),
            database,
            database_connections,
            cache,
            actor_service,
            trusted_proxies: TrustedProxies::read(root, listen),
            identity: identity?,
            templates,
            queue,
            readers: readers.unwrap_or_default(),
            users_may_address_anyone,
            users_may_send_urgent,
            unverified_addresses,
            user_quota,
            service_quota,
            webhooks: webhooks?,
            mail_tokens,
            providers,
        })
    }
}

fn read_mail_tokens(root: &Object<'_>, env: &Env) -> Option<MailTokens> {
    let key = env.optional_secret(root, KEY_VARIABLE)??;
    match MailTokens::parse(key.expose()) {
        Ok(tokens) => Some(tokens),
        Err(reason) => {
            root.fail("invalid_format", format!("{KEY_VARIABLE}: {reason}"));
            None
        }
    }
}

/// Reads a list of channels.
fn read_channels(root: &Object<'_>, name: &'static str) -> PerChannel<bool> {
    if !root.has(name) {
        return PerChannel::default();
    }
    let named = root.list(name, |field| field.one_of(Channel::NAMES));
    PerChannel::from_fn(|channel| named.contains(&channel))
}

fn read_templates(table: &Object<'_>) -> Option<TemplateConfig> {
    let TemplateConfig {
        folder,
        default_locale,
    } = TemplateConfig::new();
    Some(TemplateConfig {
        folder: table.or("folder", folder, |field| {
            field.text(1..=1024).map(PathBuf::from)
        }),
        default_locale: table.or("default_locale", default_locale, |field| {
            Locale::parse(field.string()?)
                .or_else(|| field.fail("invalid_format", "must be a tag such as en"))
        }),
    })
}

fn read_queue(table: &Object<'_>) -> Option<QueueConfig> {
    let QueueConfig {
        connections,
        permits,
        bodies,
        retention,
    } = QueueConfig::new();
    let permits = PerChannel::from_fn(|channel| {
        let name = match channel {
            Channel::Email => "email_permits",
            Channel::Sms => "sms_permits",
            Channel::Push => "push_permits",
        };
        table.or(name, *permits.get(channel), |field| {
            field.integer(1..=100_000)
        })
    });
    let retention = table.or("retention", retention, |field| {
        let wanted = field.duration()?;
        if wanted < Duration::from_secs(40 * 86_400) {
            return field.fail(
                "out_of_range",
                "must be at least 40d: a notification can be scheduled 30 days ahead",
            );
        }
        Some(wanted)
    });
    let bodies = table.or("bodies", bodies, |field| {
        let wanted = field.bytes()?;
        match usize::try_from(wanted) {
            Ok(wanted) if wanted >= 2 << 20 => Some(BodyBudgets::split(wanted)),
            Ok(_) | Err(_) => field.fail(
                "out_of_range",
                "must be at least 2MiB: one body may be 1MiB",
            ),
        }
    });
    let connections = table.or("connections", connections, |field| field.integer(3..=100));
    Some(QueueConfig {
        connections,
        permits,
        bodies,
        retention,
    })
}

impl TemplateConfig {
    fn new() -> Self {
        let default_locale = Locale::parse("en").expect("the default locale is valid");
        Self {
            folder: PathBuf::from("conf/templates"),
            default_locale,
        }
    }
}

impl QueueConfig {
    fn new() -> Self {
        let retention = Duration::from_secs(90 * 86_400);
        Self {
            connections: 6,
            permits: PerChannel::from_fn(|_| 64),
            bodies: BodyBudgets::split(16 << 20),
            retention,
        }
    }
}

#[cfg(test)]
mod tests;
