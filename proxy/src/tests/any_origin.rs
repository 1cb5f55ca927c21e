//! Cross-origin rules that allow pages of every origin.

use super::harness::{ROUTES, TestGateway};
use super::origin::{OriginBehavior, TestOrigin};

#[tokio::test]
async fn rule_for_every_origin_echoes_none() {
    for origins in ["\"*\"", "\"https://app\", \"*\""] {
        let origin = TestOrigin::start(OriginBehavior::Answer).await;
        let upstream = format!(
            "addresses = [\"{}\"]\n[defaults.cors]\norigins = [{origins}]",
            origin.address
        );
        let gateway = TestGateway::before(origin, &upstream, "", ROUTES).await;
        for page in ["https://app", "https://other", "null"] {
            let preflight = format!("Origin: {page}\r\nAccess-Control-Request-Method: GET\r\n");
            let request = format!("OPTIONS /open HTTP/1.1\r\nHost: gate\r\n{preflight}\r\n");
            let mut answers = vec![gateway.send(&request).await];
            answers.push(gateway.get("/open", &format!("Origin: {page}\r\n")).await);
            answers.push(gateway.get("/any/1", &format!("Origin: {page}\r\n")).await);
            for answer in answers {
                assert_eq!(
                    answer.header("access-control-allow-origin"),
                    Some("*"),
                    "{page}"
                );
                assert_eq!(
                    answer.header("access-control-allow-credentials"),
                    None,
                    "{page}"
                );
            }
        }
    }
}
