//! A fault that shows by time alone.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use postern_harness::note;
use postern_harness::public_api::PASSWORD;
use serde_json::json;

use super::fault_proxy::Fault;
use super::services::Services;

/// How long the pool takes for each call.
const POOL_DELAY: Duration = Duration::from_secs(5);
/// Maximum time until the overview names a cause.
const LIMIT: Duration = Duration::from_secs(15);

/// A slow identity pool is named within 15 s.
pub(super) async fn slow_identity_pool(services: &Services) {
    let ada = services.split.surface().register().await;
    services.pool.set(Fault::Delay(POOL_DELAY));
    let planted_at = Instant::now();
    let login = json!({"email": ada.email, "password": PASSWORD});
    let client = services.split.surface().client();
    let sign_ins = join_all((0..5).map(|_| client.post_json("/auth/login", &login)));
    let texts = ["identity_pool", "slow: ", " took 5."].map(str::to_owned);
    let shown = async {
        let evidence = &services.evidence;
        evidence.until_shown("slow pool", "/", &texts).await;
        planted_at.elapsed()
    };
    // A sign-in of several calls may take longer than its deadline.
    let (_, shown_after) = tokio::join!(sign_ins, shown);
    note(&format!(
        "console: a slow identity pool is named after {shown_after:.1?}"
    ));
    assert!(shown_after < LIMIT, "{shown_after:?}");
    services.pool.set(Fault::None);
    for _ in 0..3 {
        let _ = client.post_json("/auth/login", &login).await;
    }
    let ready = services.readiness("postern-auth", r#""degraded":[]"#).await;
    assert!(!ready.contains("slow: "), "{ready}");
}
