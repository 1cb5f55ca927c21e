//! The record of refusals by checks in report-only mode, which reject nothing.

use crate::routing::decision::{Check, DryRun};
use crate::state::GatewayState;
use crate::state::request_context::ReceivedRequest;

/// Counts a refusal, and keeps the code of the first one of a request for its access event, as the
/// first rejection would have ended the request.
pub(super) fn record(state: &GatewayState, request: &mut ReceivedRequest, refused: DryRun) {
    count(state, request.route_name(), refused);
    request.report_only_code.get_or_insert(refused.code);
}

/// Counts a refusal of a request to this route.
pub(super) fn count(state: &GatewayState, route: &str, refused: DryRun) {
    let (metrics, code) = (&state.metrics.report_only, refused.code.as_str());
    match refused.check {
        Check::AccessList => metrics.access_list.with_label_values(&[route]).inc(),
        Check::ExternalAuthorization => {
            let labels = [route, code];
            metrics
                .external_authorization
                .with_label_values(&labels)
                .inc();
        }
        Check::Policy => metrics.policy.with_label_values(&[route, code]).inc(),
        Check::RateLimit(limit) => metrics.rate_limit.with_label_values(&[route, limit]).inc(),
    }
}
