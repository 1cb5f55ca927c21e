//! `[defaults]`: settings that all routes have unless they override them.
//!
//! Their reader is not declared with `settings!`: the default of a key is the value of the group or
//! of `[defaults]`.

use std::sync::Arc;
use std::time::Duration;

use postern_core::decode::Object;

use crate::config::limits::read_rate_limit;
use crate::config::{
    AccessList, CompressionConfig, CorsPolicy, ExternalAuthorization, HeaderChanges, PathPattern,
    RateLimit, RateLimitKey, nonzero_duration,
};

/// The settings of a route that `[defaults]` can set for all routes. A key of a route replaces the
/// default with its whole value; tables and lists are not merged.
#[derive(Clone, Debug, Default)]
pub struct RouteSettings {
    /// Maximum bytes of a request body; default 1 MiB.
    pub body_bytes: u64,
    /// Time from the head of the request to the end of the response; default 60 s.
    pub deadline: Duration,
    /// Overrides `upstream.NAME.read_timeout`.
    pub read_timeout: Option<Duration>,
    /// Overrides `upstream.NAME.retries`.
    pub retries: Option<u32>,
    /// Rate limits in addition to those of the gateway. Each route counts by itself.
    pub limits: Vec<RateLimit>,
    /// Whether WebSocket upgrades are forwarded; default false.
    pub websocket: bool,
    /// Whether the token of a WebSocket may be among its subprotocols, after `bearer`; default false.
    pub websocket_token: bool,
    /// Whether the upstream may set cookies; default false, because sessions are not kept in
    /// cookies.
    pub cookies: bool,
    /// Whether paths may have encoded slashes and semicolons, empty segments, parameters and double
    /// encoding; default false, because upstreams read them in different ways.
    pub ambiguous_paths: bool,
    /// Whether what the policy, the access list, the external authorization and the rate limits of the
    /// route refuse is counted and logged, and not rejected; default false. A credential is required
    /// nevertheless.
    pub report_only: bool,
    /// Changes of the header fields of forwarded requests. With `inherit = true`, those of the
    /// defaults for other fields are added.
    pub request_headers: Option<Arc<HeaderChanges>>,
    /// Changes of the header fields of every response, including rejections.
    pub response_headers: Option<Arc<HeaderChanges>>,
    /// The client addresses that may use the route; default all.
    pub access: Option<Arc<AccessList>>,
    /// The service that decides on requests which the policy allows; default none.
    pub authorize: Option<Arc<ExternalAuthorization>>,
    /// Compression of responses; default none.
    pub compression: Option<Arc<CompressionConfig>>,
    /// The CORS policy; default none.
    pub cors: Option<Arc<CorsPolicy>>,
}

impl RouteSettings {
    /// Reads the settings of `[defaults]` or of a route, within its group if it has one. A key that is
    /// absent has the value of `inherited`. `path` is the path of a route, whose parameters header fields may contain.
    pub(super) fn read(section: &Object<'_>, inherited: &Self, path: Option<&PathPattern>) -> Self {
        let changes = |name: &'static str, inherited: &Option<Arc<HeaderChanges>>| {
            // Those of a group, and then those of the route itself.
            section
                .fields(name)
                .fold(inherited.clone(), |inherited, field| {
                    let read =
                        |it: &Object<'_>| HeaderChanges::read_within(it, inherited.as_ref(), path);
                    field.object(read).unwrap_or(inherited)
                })
        };
        let or_flag =
            |name: &'static str, default: bool| section.or(name, default, |field| field.boolean());
        Self {
            body_bytes: section.or("body_bytes", inherited.body_bytes, |field| field.bytes()),
            deadline: section.or("deadline", inherited.deadline, nonzero_duration),
            read_timeout: section
                .optional("read_timeout", nonzero_duration)
                .or(inherited.read_timeout),
            retries: section
                .optional("retries", |field| field.integer(0..=5))
                .or(inherited.retries),
            limits: section
                .optional("limits", |field| {
                    field.array(|item| item.object(read_rate_limit))
                })
                .unwrap_or_else(|| inherited.limits.clone()),
            websocket: or_flag("websocket", inherited.websocket),
            websocket_token: or_flag("websocket_token", inherited.websocket_token),
            cookies: or_flag("cookies", inherited.cookies),
            ambiguous_paths: or_flag("ambiguous_paths", inherited.ambiguous_paths),
            report_only: or_flag("report_only", inherited.report_only),
            request_headers: changes("request_headers", &inherited.request_headers),
            response_headers: changes("response_headers", &inherited.response_headers),
            access: section
                .section("access", AccessList::read)
                .map(Arc::new)
                .or_else(|| inherited.access.clone()),
            authorize: section
                .section("authorize", ExternalAuthorization::read)
                .map(Arc::new)
                .or_else(|| inherited.authorize.clone()),
            compression: match section.has("compression") {
                true => section
                    .optional("compression", CompressionConfig::read_form)
                    .map(Arc::new),
                false => inherited.compression.clone(),
            },
            cors: section
                .section("cors", CorsPolicy::read)
                .map(Arc::new)
                .or_else(|| inherited.cors.clone()),
        }
    }

    /// Returns the settings without `[defaults]`.
    pub(super) fn built_in() -> Self {
        Self {
            body_bytes: 1 << 20,
            deadline: Duration::from_secs(60),
            ..Self::default()
        }
    }

    /// Removes the rate limits by principal from a public route, which has none. A limit of the
    /// route itself is a mistake.
    pub(super) fn remove_principal_limits(&mut self, route: &Object<'_>) {
        let count = self.limits.len();
        self.limits
            .retain(|limit| limit.by != RateLimitKey::Principal);
        if self.limits.len() < count && route.has_own("limits") {
            route.fail(
                "invalid_choice",
                "a public route has no principal to limit by",
            );
        }
    }
}
