//! What the notification upstream reads from `conf/notify.toml` and the environment.

mod provider;
mod webhooks;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use postern_common::config::Env;
use postern_common::decode::Object;
use postern_common::http::{BodyBudgets, TrustedProxies};
use postern_common::identity::IdentityConfig;
use postern_common::log::Log;
use url::Url;

use crate::delivery::mail_token::{KEY_VARIABLE, MailTokens};
use crate::delivery::pool::OutletConfig;
use crate::notification::Channel;
use crate::receipts::webhook::Webhooks;
use crate::templates::Locale;

/// The settings of one notification upstream.
#[derive(Debug)]
pub struct Config {
    /// Where requests arrive. Default `127.0.0.1:8502`: the gateway is in front.
    pub listen: SocketAddr,
    /// Where `/livez`, `/readyz` and `/metrics` are. Default `127.0.0.1:8511`.
    pub admin: SocketAddr,
    /// `admin_hosts`: names by which operators may call it, besides loopback names and, where it
    /// does not listen on a loopback address, IP addresses; default none. Any other `Host` is
    /// refused.
    pub(crate) admin_hosts: Vec<String>,
    /// Log lines. Default JSON at `info`.
    pub(crate) log: Log,
    /// `postgres://…` or `sqlite://…`. Default `sqlite://var/notify.db`. `NOTIFY_DATABASE` wins
    /// over the file.
    pub(crate) database: String,
    /// `redis://…`, `rediss://…`, a Cluster or Sentinel URL, or `memory:` for a single process.
    /// Default `memory:`. `NOTIFY_CACHE` wins over the file.
    pub(crate) cache: String,
    /// Base URL of the actor service, which knows addresses. Default `http://127.0.0.1:8504`.
    pub(crate) actor_service: Url,
    /// Whose `X-Forwarded-For` is believed. Default this machine's own addresses: a gateway beside
    /// us.
    pub(crate) trusted_proxies: TrustedProxies,
    /// The identity pools.
    pub(crate) identity: IdentityConfig,
    /// Where the templates are, and in which language when none is asked for.
    pub(crate) templates: Templates,
    /// How the queue works.
    pub(crate) queue: Queue,
    /// Whether a user may address others than itself. Default false: else anyone who registers
    /// could send mail to the world.
    pub(crate) users_may_address_anyone: bool,
    /// Whether a user may send CRITICAL and HIGH, before the NORMAL of everybody else. Default
    /// false.
    pub(crate) users_may_send_urgent: bool,
    /// Channels on which a user may have something sent to an address of its own although the actor
    /// service does not say (`emailVerified`, `phoneVerified`, `deviceVerified`) whether it is
    /// verified. Default none: an address in a profile is whatever the user wrote. A template can
    /// be an exception, with a quota (`unverified_addresses` in its `template.toml`).
    pub(crate) unverified_addresses: [bool; 3],
    /// Notifications a minute for each user. Default 600: a user writes to itself alone.
    pub(crate) user_quota: Option<u64>,
    /// Notifications a minute for each service. Default: no limit.
    pub(crate) service_quota: Option<u64>,
    /// What providers may report, and the URL under which they reach us.
    pub(crate) webhooks: Webhooks,
    /// What clicks and delivery reports are proven with: `NOTIFY_TOKEN_KEY`, base64 of 32 bytes or
    /// more; a new key before the old one, with a comma between, replaces it. Without it no mail
    /// offers a click, and no report is believed.
    pub(crate) mail_tokens: Option<MailTokens>,
    /// The providers, in the order of the file.
    pub(crate) outlets: Vec<OutletConfig>,
}

/// Where the templates are.
#[derive(Clone, Debug)]
pub(crate) struct Templates {
    /// The folder. Default `conf/templates`.
    pub(crate) folder: PathBuf,
    /// The language when none is asked for, or the wanted one is not there. Default `en`.
    pub(crate) default_locale: Locale,
}

/// How the queue works.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    /// Connections to PostgreSQL for the queue alone. Default 6: one writes, one finishes, one
    /// claims for each channel, one reads.
    pub(crate) connections: u32,
    /// Notifications in hand at once, by [`Channel::index`]. Default 64 each: what the providers
    /// take at once.
    pub(crate) permits: [usize; 3],
    /// Bytes of request bodies that wait for their commit; as many again may be arriving. Beyond it
    /// the answer is 503. Default 16 MiB, at least 2 MiB, of which services have half, users a
    /// quarter, and callers without a token and webhooks an eighth each, but at least one body:
    /// what was read in a body may take twenty-five times its bytes.
    pub(crate) bodies: BodyBudgets,
    /// How long records and results are kept. Default 90 days, at least 40: a notification can be
    /// scheduled 30 ahead.
    pub(crate) retention: Duration,
}

// === impl Config ===

impl Config {
    /// Reads the settings; every mistake is noted.
    pub fn read(root: &Object<'_>, env: &Env) -> Option<Self> {
        let address = |name, default: [u8; 4], port: u16| {
            root.or(name, SocketAddr::from((default, port)), |field| {
                field.socket_addr()
            })
        };
        let (listen, admin) = (
            address("listen", [127, 0, 0, 1], 8502),
            address("admin", [127, 0, 0, 1], 8511),
        );
        let log = Log::read(root);
        let text = |name, variable, default: &str| {
            let written = root.optional(name, |field| field.text(1..=1024));
            env.get(variable)
                .map(str::to_owned)
                .or(written)
                .unwrap_or_else(|| default.to_owned())
        };
        let database = text("database", "NOTIFY_DATABASE", "sqlite://var/notify.db");
        let cache = text("cache", "NOTIFY_CACHE", "memory:");
        let actors = Url::parse("http://127.0.0.1:8504").expect("a constant that is a URL");
        let actor_service = root.or("actor_service", actors, |field| field.url());
        let identity = IdentityConfig::read(root, env);
        let templates = root
            .section("templates", read_templates)
            .unwrap_or_else(Templates::new);
        let queue = root.section("queue", read_queue).unwrap_or_else(Queue::new);
        let quota = |name| root.optional(name, |field| field.integer(1..=1_000_000_000_u64));
        let (user_quota, service_quota) =
            (quota("user_quota").or(Some(600)), quota("service_quota"));
        let public_url = root.optional("public_url", |field| field.url());
        let webhooks = webhooks::read(root, env, public_url.as_ref());
        let users_may_address_anyone =
            root.or("users_may_address_anyone", false, |field| field.boolean());
        let users_may_send_urgent =
            root.or("users_may_send_urgent", false, |field| field.boolean());
        let unverified_addresses = read_channels(root, "unverified_addresses", [false; 3]);
        let mail_tokens = read_mail_tokens(root, env);
        let outlets = root.list("provider", |field| {
            field.object(|object| {
                OutletConfig::read(object, env, public_url.as_ref(), mail_tokens.as_ref())
            })
        });
        provider::refuse_doubles(root, &outlets);
        Some(Self {
            listen,
            admin,
            admin_hosts: root.or("admin_hosts", Vec::new(), |field| {
                field.array(|item| item.text(1..=253))
            }),
            log,
            database,
            cache,
            actor_service,
            trusted_proxies: TrustedProxies::read(root, listen),
            identity: identity?,
            templates,
            queue,
            users_may_address_anyone,
            users_may_send_urgent,
            unverified_addresses,
            user_quota,
            service_quota,
            webhooks: webhooks?,
            mail_tokens,
            outlets,
        })
    }
}

fn read_mail_tokens(root: &Object<'_>, env: &Env) -> Option<MailTokens> {
    match MailTokens::parse(env.secret(KEY_VARIABLE)?.expose()) {
        Ok(tokens) => Some(tokens),
        Err(reason) => {
            root.fail("invalid_format", format!("{KEY_VARIABLE}: {reason}"));
            None
        }
    }
}

/// A list of channels, by [`Channel::index`].
fn read_channels(root: &Object<'_>, name: &'static str, default: [bool; 3]) -> [bool; 3] {
    if !root.has(name) {
        return default;
    }
    let named = root.list(name, |field| field.one_of(Channel::WORDS));
    Channel::ALL.map(|channel| named.contains(&channel))
}

fn read_templates(table: &Object<'_>) -> Option<Templates> {
    let Templates {
        folder,
        default_locale,
    } = Templates::new();
    Some(Templates {
        folder: table.or("folder", folder, |field| {
            field.text(1..=1024).map(PathBuf::from)
        }),
        default_locale: table.or("default_locale", default_locale, |field| {
            Locale::parse(field.string()?)
                .or_else(|| field.fail("invalid_format", "must be a tag such as en"))
        }),
    })
}

fn read_queue(table: &Object<'_>) -> Option<Queue> {
    let Queue {
        connections,
        permits,
        bodies,
        retention,
    } = Queue::new();
    let mut read = permits;
    for channel in Channel::ALL {
        let name = match channel {
            Channel::Email => "email_permits",
            Channel::Sms => "sms_permits",
            Channel::Push => "push_permits",
        };
        read[channel.index()] = table.or(name, permits[channel.index()], |field| {
            field.integer(1..=100_000)
        });
    }
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
    Some(Queue {
        connections,
        permits: read,
        bodies,
        retention,
    })
}

impl Templates {
    fn new() -> Self {
        let default_locale = Locale::parse("en").expect("a constant that is a tag");
        Self {
            folder: PathBuf::from("conf/templates"),
            default_locale,
        }
    }
}

impl Queue {
    fn new() -> Self {
        let retention = Duration::from_secs(90 * 86_400);
        Self {
            connections: 6,
            permits: [64; 3],
            bodies: BodyBudgets::split(16 << 20),
            retention,
        }
    }
}

#[cfg(test)]
mod tests;
