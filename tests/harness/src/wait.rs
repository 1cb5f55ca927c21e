//! Waiting for conditions: a test asks again and again, for at most a minute, and never sleeps.

use std::time::Duration;

use tokio::time::MissedTickBehavior;

const LIMIT: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_millis(20);

/// Asks until there is an answer, and returns it. The reason why there is none yet is told if there
/// never is one.
pub async fn answer<T>(ask: impl AsyncFnMut() -> Result<T, String>) -> T {
    let answer = answer_or_reason(ask).await;
    answer.unwrap_or_else(|reason| panic!("not in {LIMIT:?}: {reason}"))
}

/// As [`answer`]; returns the last reason if there is no answer in time.
pub async fn answer_or_reason<T>(
    mut ask: impl AsyncFnMut() -> Result<T, String>,
) -> Result<T, String> {
    let mut last = String::new();
    let asking = async {
        let mut interval = tokio::time::interval(INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            match ask().await {
                Ok(answer) => return answer,
                Err(reason) => last = reason,
            }
        }
    };
    let answer = tokio::time::timeout(LIMIT, asking).await;
    answer.map_err(|_| last)
}

/// Waits until a condition holds.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let ask = async || holds().await.then_some(()).ok_or_else(|| what.to_owned());
    answer(ask).await;
}

/// Asks for a text until it contains a part, and returns it.
pub async fn text_with(part: &str, mut ask: impl AsyncFnMut() -> String) -> String {
    answer(async || {
        let text = ask().await;
        match text.contains(part) {
            true => Ok(text),
            false => Err(format!("no {part:?} in {text}")),
        }
    })
    .await
}
