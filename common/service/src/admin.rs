//! The admin listener: liveness, readiness with reasons, and metrics.

use std::collections::BTreeMap;
use tokio_util::sync::CancellationToken;

use ::http::StatusCode;
use ::http::header::CONTENT_TYPE;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use prometheus::{Registry, TextEncoder};
use serde_json::json;
use tokio::net::TcpListener;

use crate::http::{self, AllowedHosts, Limits};
use crate::process_metrics;
use postern_core::health::Health;

/// Returns the routes `/livez`, `/readyz` (503 with the reasons if not ready) and `/metrics`
/// (Prometheus text format). Adds the metrics of the process to the registry, see
/// [`process_metrics`].
pub fn router(health: Health, metrics: Registry) -> Router {
    process_metrics::register(&metrics);
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz).with_state(health))
        .route("/metrics", get(expose).with_state(metrics))
}

/// Serves the admin router on its own listener. Requests whose `Host` is neither a loopback name
/// nor one of `hosts` are rejected.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    hosts: &[String],
    stop: CancellationToken,
) {
    let hosts = AllowedHosts::of(listener.local_addr().ok(), hosts);
    http::serve(listener, hosts.guard(router), limits, stop).await;
}

async fn readyz(State(health): State<Health>) -> Response {
    let parts = health.parts().into_iter();
    let parts = parts.map(|(part, reason)| (part.to_owned(), reason.unwrap_or("ok".into())));
    let mut parts: BTreeMap<String, String> = parts.collect();
    let degraded = health.degraded();
    let names: Vec<&String> = degraded.keys().collect();
    for (name, reason) in &degraded {
        let part = parts.entry(name.clone());
        part.or_insert_with(|| format!("degraded: {reason}"));
    }
    let ready = health.is_ready();
    let status = match ready {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    let body = json!({ "ready": ready, "degraded": names, "parts": parts });
    (status, Json(body)).into_response()
}

async fn expose(State(metrics): State<Registry>) -> Response {
    match TextEncoder::new().encode_to_string(&metrics.gather()) {
        Ok(text) => ([(CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn failing_partner_degrades_a_ready_process() {
        let health = Health::new();
        health.check("database").set_ok();
        let smtp = health.degradation("smtp");
        smtp.set("connection refused");
        let body = async |health: &Health| {
            let answer = readyz(State(health.clone())).await;
            assert_eq!(answer.status(), StatusCode::OK);
            let body = axum::body::to_bytes(answer.into_body(), 4096).await;
            serde_json::from_slice::<serde_json::Value>(&body.expect("a body")).expect("JSON")
        };
        let expected = json!({
            "ready": true,
            "degraded": ["smtp"],
            "parts": { "database": "ok", "smtp": "degraded: connection refused" },
        });
        assert_eq!(body(&health).await, expected);
        smtp.clear();
        assert_eq!(body(&health).await["degraded"], json!([]));
    }
}
