//! Dry runs: checks in report-only mode, whose rejections are counted and logged, and not made.

use postern_core::Code;

use crate::state::GatewayState;
use crate::state::request_context::RequestContext;
use crate::telemetry::metrics::NO_ROUTE;

/// A check that would have rejected a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DryRun {
    /// The access list of the route.
    AccessList,
    /// The external authorization of the route, with this problem code.
    ExternalAuthorization(Code),
    /// The policy of the route, with this problem code.
    Policy(Code),
    /// The rate limit of this name: `address`, `principal` or `route`.
    RateLimit(&'static str),
}

/// Counts a rejection that is not made, and records its code for the access event. The first one of
/// a request is logged, as the first rejection would have ended the request.
pub(crate) fn record(state: &GatewayState, ctx: &mut RequestContext, check: DryRun) {
    let config = std::sync::Arc::clone(&ctx.config);
    let route = ctx.route.map_or(NO_ROUTE, |index| {
        config.route_table.routes[index].name.as_str()
    });
    let metrics = &state.metrics.report_only;
    let code = match check {
        DryRun::AccessList => {
            metrics.access_list.with_label_values(&[route]).inc();
            Code::AddressNotAllowed
        }
        DryRun::ExternalAuthorization(code) => {
            let labels = [route, code.as_str()];
            let counter = metrics.external_authorization.with_label_values(&labels);
            counter.inc();
            code
        }
        DryRun::Policy(code) => {
            let labels = [route, code.as_str()];
            metrics.policy.with_label_values(&labels).inc();
            code
        }
        DryRun::RateLimit(name) => {
            count_rate_limit(state, route, name);
            Code::RateLimited
        }
    };
    ctx.report_only_code.get_or_insert(code);
}

/// Counts a request that a rate limit in report-only mode would have rejected.
pub(crate) fn count_rate_limit(state: &GatewayState, route: &str, limit: &str) {
    let counters = &state.metrics.report_only.rate_limit;
    counters.with_label_values(&[route, limit]).inc();
}
