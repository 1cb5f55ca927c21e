//! Why a request got its response, as far as its event tells, and how its explanation differs.

use maud::{Markup, html};
use postern_core::problem::Code;
use serde_json::Value;

use crate::widgets::{Tone, notice, plain};

/// The status of requests without an accepted token or API key.
const CREDENTIAL_STATUS: u64 = 401;

/// Returns the meaning of the problem code of a request, and the difference to `explained`, which
/// knows neither its token nor its body.
pub(super) fn notices(event: &Value, explained: Option<&Value>) -> Markup {
    html! {
        @if let Some((title, text)) = meaning(event) { (notice(Tone::Warn, title, &text)) }
        @if let Some(text) = difference(event, explained) { (notice(Tone::Warn, "The decision below differs", &text)) }
    }
}

/// Returns a problem code and its meaning; `None` if the response has no problem.
fn meaning(event: &Value) -> Option<(&'static str, String)> {
    let code = plain(&event["code"]);
    let code = Code::ALL.iter().find(|known| known.as_str() == code)?;
    let hint = if *code == Code::MethodNotAllowed && event["method"] == "OPTIONS" {
        ". If this is the preflight of a browser (CORS), the origin of its page is not in cors.origins of the route"
    } else if [Code::InvalidRequest, Code::ValidationFailed].contains(code) {
        ". The response to the caller names each field, in errors"
    } else {
        ""
    };
    let author = match (event["decision"].as_str(), event["upstream"].as_str()) {
        (Some("forwarded"), Some(upstream)) if event["cause"].is_null() => {
            format!("answered by the upstream {upstream}: ")
        }
        _ => String::new(),
    };
    Some((code.as_str(), format!("{author}{}{hint}", code.title())))
}

/// Returns how the explained decision differs: in the route, or from that of a rejected request.
fn difference(event: &Value, explained: Option<&Value>) -> Option<String> {
    let limits = "The explanation uses the configuration in force now, and knows neither query nor header fields";
    let (route, explained_route) = (plain(&event["route"]), plain(&explained?["route"]));
    if !route.is_empty() && explained_route.split(':').next() != Some(&route) {
        return Some(format!(
            "The request took another route, {route}. {limits}."
        ));
    }
    if event["decision"] != "rejected" {
        return None;
    }
    let (status, code) = (event["status"].as_u64()?, plain(&event["code"]));
    let decision = plain(&explained?["decision"]);
    let mut words = decision.split([' ', ':']);
    if words.any(|word| word == code) {
        return None;
    }
    let reason = if decision.starts_with("allow") {
        "The route accepts such a request: this one was rejected later, by a limit"
    } else if status == CREDENTIAL_STATUS && event["kind"].is_null() {
        "It is that of a request without a token: the rejected token, or API key, is not in the event"
    } else {
        limits
    };
    Some(format!("{reason}. The response was {status} {code}."))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(event: &Value, decision: &str) -> String {
        notices(event, Some(&json!({ "decision": decision }))).into_string()
    }

    #[test]
    fn rejected_token_is_not_explained_as_missing() {
        let event = json!({ "decision": "rejected", "status": 401, "code": "token_expired" });
        let shown = shown(
            &event,
            "401 authentication_required: A Bearer token is required",
        );
        for expected in [
            "The access token has expired",
            "a request without a token",
            "The response was 401 token_expired.",
        ] {
            assert!(shown.contains(expected), "{expected} is missing in {shown}");
        }
    }

    #[test]
    fn limit_after_an_accepted_decision_is_named() {
        for (status, code) in [(429, "rate_limited"), (413, "body_too_large")] {
            let event = json!({ "decision": "rejected", "status": status, "code": code });
            let shown = shown(&event, "allow");
            assert!(shown.contains("rejected later, by a limit"), "{shown}");
        }
    }

    #[test]
    fn same_decision_and_success_have_no_difference() {
        let event = json!({ "decision": "rejected", "status": 403, "code": "insufficient_scope", "kind": "user" });
        let shown_text = shown(&event, "403 insufficient_scope: The access token");
        assert!(!shown_text.contains("differs"), "{shown_text}");
        let event = json!({ "decision": "forwarded", "status": 200, "code": "ok" });
        assert_eq!(shown(&event, "allow"), "");
    }

    #[test]
    fn answer_of_an_upstream_names_it_and_where_the_fields_are() {
        let event = json!({
            "decision": "forwarded", "status": 422, "code": "validation_failed", "upstream": "notify",
        });
        let shown_text = shown(&event, "allow");
        assert!(
            shown_text.contains("answered by the upstream notify"),
            "{shown_text}"
        );
        assert!(shown_text.contains("names each field"), "{shown_text}");
        let preflight = json!({
            "decision": "rejected", "status": 405, "code": "method_not_allowed", "method": "OPTIONS",
        });
        let shown_text = shown(&preflight, "405 method_not_allowed: The method");
        assert!(shown_text.contains("cors.origins"), "{shown_text}");
    }
}
