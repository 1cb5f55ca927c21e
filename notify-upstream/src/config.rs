//! Configuration of the notification service, from `conf/notify.toml` and the environment.
//!
//! Input: the decoded file and the environment. Output: plain settings, or all mistakes. Depends on
//! the types that the settings describe, in `address`, `delivery`, `notification`, `receipts` and
//! `templates`.

mod provider;
mod webhooks;

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use postern_core::config::{AdminListener, Env, read_admin, read_listen};
use postern_core::decode::{Field, Object};
use postern_core::identity::IdentityConfig;
use postern_core::settings;
use postern_service::http::{BodyBudgets, TrustedProxies};
use postern_service::log::Log;
use postern_service::trace::TracingConfig;
use postern_store::database::DatabaseOptions;
use url::Url;

use self::provider::LinkConfig;
use crate::delivery::mail_token::{KEY_VARIABLE, MailTokens};
use crate::delivery::pool::ProviderConfig;
use crate::notification::{Channel, PerChannel};
use crate::receipts::webhook::Webhooks;
use crate::templates::Locale;

settings! {
    /// The configuration of the notification service.
    #[derive(Debug)]
    pub struct Config(root, env: &Env) {
        /// Address of the API, which is reached through the gateway.
        pub listen: SocketAddr = (Some(read_listen(root, "127.0.0.1:8502"))),
        /// Admin listener.
        pub admin: AdminListener = (read_admin(root, Some("127.0.0.1:8511"), env)),
        /// Log format and filter.
        pub(crate) log: Log = (Some(Log::read_section(root, env))),
        /// Export of OpenTelemetry spans.
        pub(crate) tracing: Option<TracingConfig> = (Some(TracingConfig::read_optional(root, env))),
        /// The identity pools and further issuers.
        pub(crate) identity: IdentityConfig = (IdentityConfig::read(root, env)),
        /// `postgres://…` or `sqlite://…`; variable `NOTIFY_DATABASE`.
        pub(crate) database: String = "sqlite://var/notify.db" => |field| {
            let written = field.typed("URL").text(1..=1024)?;
            Some(env.secret_or(root, "NOTIFY_DATABASE", written))
        },
        /// PostgreSQL connections, besides those of the queue.
        pub(crate) database_connections: u32 = 10 => |field| field.integer(3..=1000),
        /// Redis or `memory:`; variable `NOTIFY_CACHE`.
        ///
        /// `redis://…`, `rediss://…`, a Cluster or Sentinel URL, or `memory:` for a single process.
        pub(crate) cache: String = "memory:" => |field| {
            let written = field.typed("URL").text(1..=1024)?;
            Some(env.secret_or(root, "NOTIFY_CACHE", written))
        },
        /// Service that knows the addresses of `actorId`.
        pub(crate) actor_service: Url = "http://127.0.0.1:8504" => |field| field.url(),
        /// Proxies whose `X-Forwarded-For` is used.
        pub(crate) trusted_proxies: TrustedProxies = (Some(TrustedProxies::read(root, listen?))),
        /// Address of the gateway, for status callbacks and one-click unsubscription.
        pub public_url: Option<Url> = None => |field| field.url(),
        pub(crate) access: AccessConfig = {} => |field| field.object(AccessConfig::read),
        /// Whether users may address others.
        ///
        /// Otherwise every registered user could send e-mail to arbitrary addresses.
        pub(crate) users_may_address_anyone: bool = false => |field| field.boolean(),
        /// Whether users may send CRITICAL and HIGH.
        ///
        /// They take precedence over the NORMAL of other callers.
        pub(crate) users_may_send_urgent: bool = false => |field| field.boolean(),
        /// Channels on which a user's own address need not be verified.
        ///
        /// The actor service reports verified addresses (`emailVerified`, `phoneVerified`,
        /// `deviceVerified`). Users can write any address into their profile. A template can allow it
        /// with a quota (`unverified_addresses` in its `template.toml`).
        pub(crate) unverified_addresses: PerChannel<bool> = [] => |field| {
            let named = field.array(|item| item.one_of(Channel::NAMES))?;
            Some(PerChannel::from_fn(|channel| named.contains(&channel)))
        },
        /// Notifications per minute and user.
        ///
        /// Those with `sendAt` count in its minute. Users send to themselves only.
        pub(crate) user_quota: Option<u64> = 600 => |field| field.integer(QUOTAS).map(Some),
        /// Notifications per minute and service.
        pub(crate) service_quota: Option<u64> = None => |field| field.integer(QUOTAS),
        pub(crate) templates: TemplateConfig = {} => |field| field.object(TemplateConfig::read),
        pub(crate) queue: QueueConfig = {} => |field| field.object(QueueConfig::read),
        /// Keys for unsubscribe links and delivery reports: `NOTIFY_TOKEN_KEY`, base64 of at least 32
        /// bytes. To rotate, put the new key before the old one, separated by a comma. Without keys,
        /// e-mail has no unsubscribe link and delivery reports are rejected.
        pub(crate) mail_tokens: Option<MailTokens> = (Some(read_mail_tokens(root, env))),
        /// Providers; those of a channel share the traffic, and replace each other.
        pub(crate) providers as provider: Vec<ProviderConfig> = [] => |field| {
            let links = LinkConfig {
                public_url: public_url.as_ref()?.as_ref(),
                tokens: mail_tokens.as_ref()?.as_ref(),
            };
            provider::read(root, field, env, links)
        },
        /// Verification of delivery reports; without it they are rejected.
        pub(crate) webhooks: Webhooks = {} => |field| {
            field.object(|table| webhooks::read(table, env, public_url.as_ref()?.as_ref()))
        },
    }
}

settings! {
    /// Who reads notifications.
    #[derive(Debug)]
    pub(crate) struct AccessConfig(table) {
        /// Services that may read all notifications.
        ///
        /// Any other service reads those that it created.
        pub(crate) readers: Vec<String> = []
            => |field| field.array(|item| item.typed("service name").text(1..=128)),
    }
}

settings! {
    /// Templates.
    #[derive(Clone, Debug)]
    pub(crate) struct TemplateConfig(table) {
        /// Folder, relative to the working directory.
        pub(crate) folder: PathBuf = "conf/templates" => |field| field.path(),
        /// Locale if the requested one does not exist.
        pub(crate) default_locale: Locale = "en" => |field| {
            Locale::parse(field.typed("tag").string()?)
                .or_else(|| field.fail("invalid_format", "must be a tag such as en"))
        },
    }
}

settings! {
    /// Queue and delivery.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct QueueConfig(table) {
        /// PostgreSQL connections of the queue.
        ///
        /// By default one for inserts, one for results, one per channel for claims, one for reads.
        pub(crate) connections: u32 = 6 => |field| field.integer(3..=100),
        /// Concurrent deliveries of the channel.
        pub(crate) email_permits: usize = 64 => |field| field.integer(PERMITS),
        /// Concurrent deliveries of the channel.
        pub(crate) sms_permits: usize = 64 => |field| field.integer(PERMITS),
        /// Concurrent deliveries of the channel.
        pub(crate) push_permits: usize = 64 => |field| field.integer(PERMITS),
        /// [Memory](../manual/notifications.md#memory-replicas-and-shutdown) for request bodies.
        ///
        /// Bytes of complete request bodies that wait for their commit; as many again may be arriving.
        /// Requests beyond the budget get 503. Services have half of it, users a quarter, callers
        /// without a token and webhooks an eighth each, and each part at least one body. Parsed data
        /// may take 25 times the bytes of its body.
        pub(crate) bodies: BodyBudgets = "16MiB" => read_bodies,
        /// Time for which records are kept.
        pub(crate) retention: Duration = "90d" => read_retention,
    }
}

const QUOTAS: RangeInclusive<u64> = 1..=1_000_000_000;
const PERMITS: RangeInclusive<usize> = 1..=100_000;

// === impl Config ===

impl Config {
    /// Returns the options of the database.
    pub(crate) fn database_options(&self) -> DatabaseOptions {
        DatabaseOptions {
            max_connections: self.database_connections,
            ..DatabaseOptions::new("postern-notify")
        }
    }
}

// === impl QueueConfig ===

impl QueueConfig {
    /// Returns the maximum number of concurrent deliveries.
    pub(crate) fn permits(&self) -> PerChannel<usize> {
        PerChannel::from_fn(|channel| match channel {
            Channel::Email => self.email_permits,
            Channel::Sms => self.sms_permits,
            Channel::Push => self.push_permits,
        })
    }
}

fn read_bodies(field: Field<'_>) -> Option<BodyBudgets> {
    let wanted = field.typed("size, at least `2MiB`").bytes()?;
    match usize::try_from(wanted) {
        Ok(wanted) if wanted >= 2 << 20 => Some(BodyBudgets::split(wanted)),
        Ok(_) | Err(_) => field.fail(
            "out_of_range",
            "must be at least 2MiB: one body may be 1MiB",
        ),
    }
}

fn read_retention(field: Field<'_>) -> Option<Duration> {
    let wanted = field.typed("duration, at least `40d`").duration()?;
    if wanted < Duration::from_secs(40 * 86_400) {
        let detail = "must be at least 40d: a notification can be scheduled 30 days ahead";
        return field.fail("out_of_range", detail);
    }
    Some(wanted)
}

fn read_mail_tokens(root: &Object<'_>, env: &Env) -> Option<MailTokens> {
    let key = env.optional_secret(root, KEY_VARIABLE)??;
    let fail = |reason| root.fail("invalid_format", format!("{KEY_VARIABLE}: {reason}"));
    MailTokens::parse(key.expose()).map_err(fail).ok()
}

#[cfg(test)]
mod tests;
