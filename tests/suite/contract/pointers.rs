//! JSON Pointers in error responses.

use postern_tests::Postern;
use postern_tests::http_body::json;

/// The client validates every response against `conf/openapi.json`, which restricts `pointer` by a
/// pattern.
#[tokio::test]
async fn pointer_with_line_feeds_matches_schema() {
    let postern = Postern::start().await;
    let ada = postern.surface().register().await;
    for name in ["line\nfeed", "\n", "\r\n\u{2028}", "/slash~\n"] {
        let body = json!({ name: 1 });
        let answer = ada.client.post_json("/notifications", &body).await;
        let refusal = answer.problem(400, "invalid_request");
        // JSON Pointer escapes (RFC 6901 section 3).
        let escaped = name.replace('~', "~0").replace('/', "~1");
        let pointers = refusal.pointers();
        assert!(pointers.contains(&format!("/{escaped}")), "{pointers:?}");
    }
    postern.stop().await;
}
