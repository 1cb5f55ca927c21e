//! The web console in a real browser, over the processes.

use postern_tests::console::{self, Console};
use postern_tests::skipped;

const NO_BROWSER: &str = "no chromium and chromedriver on this machine";

#[tokio::test]
async fn operator_signs_in_to_the_console() {
    let split = console::start_split().await;
    let Some(console) = Console::start(&split).await else {
        return skipped("operator_signs_in_to_the_console", NO_BROWSER);
    };
    console.sign_in("operator@example.com", "admin").await;
    assert_eq!(console.browser().find("h1").await.text().await, "Overview");
    console.wait_for_text("Nothing is wrong").await;
    let who = console.browser().find("#who").await.text().await;
    assert!(who.starts_with("operator · "), "{who}");
    console.assert_clean().await;
    console.stop().await;
    split.stop().await;
}
