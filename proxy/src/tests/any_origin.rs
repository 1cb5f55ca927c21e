//! Cross-origin rules that allow pages of every origin.

use super::harness::{Gateway, ROUTES, WAYS};
use super::origin::{Manner, Origin};

#[tokio::test]
async fn rule_for_every_origin_echoes_none() {
    for origins in ["\"*\"", "\"https://app\", \"*\""] {
        let origin = Origin::start(Manner::Answer).await;
        let upstream = format!(
            "addresses = [\"{}\"]\n[cors]\norigins = [{origins}]",
            origin.address
        );
        let gateway = Gateway::before(origin, &upstream, "", ROUTES).await;
        for page in ["https://app", "https://other", "null"] {
            let preflight = format!("Origin: {page}\r\nAccess-Control-Request-Method: GET\r\n");
            let request = format!("OPTIONS /open HTTP/1.1\r\nHost: gate\r\n{preflight}\r\n");
            let mut answers = vec![gateway.send(&request).await];
            for way in WAYS {
                answers.push(
                    gateway
                        .get("/open", &format!("{way}Origin: {page}\r\n"))
                        .await,
                );
                answers.push(
                    gateway
                        .get("/any/1", &format!("{way}Origin: {page}\r\n"))
                        .await,
                );
            }
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
