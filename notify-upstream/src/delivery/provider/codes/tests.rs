use super::*;
use crate::address::PhoneNumber;
use crate::delivery::provider::call::ApiResponse;
use crate::delivery::provider::{fcm, twilio};

/// A row of `answers.txt`: what a provider says at a stage, and what it means.
pub(crate) struct Answer {
    pub(crate) provider: &'static str,
    pub(crate) stage: &'static str,
    pub(crate) text: String,
    /// Class, code, scope, and `suppress`.
    pub(crate) meaning: &'static str,
}

pub(crate) fn answers() -> impl Iterator<Item = Answer> {
    let rows = include_str!("answers.txt").lines();
    let rows = rows.filter(|row| !row.is_empty() && !row.starts_with('#'));
    rows.map(|row| {
        let columns: Vec<&str> = row.split('|').map(str::trim).collect();
        let [provider, stage, text, meaning, _source] = columns[..] else {
            panic!("five columns: {row}")
        };
        Answer {
            provider,
            stage,
            text: text.replace("\\n", "\r\n"),
            meaning,
        }
    })
}

/// Returns a refusal in the form of the last column.
pub(crate) fn meaning(refusal: &ProviderRefusal) -> String {
    let ProviderRefusal {
        class, code, scope, ..
    } = refusal;
    let words = format!("{class:?} {code} {scope:?}").to_lowercase();
    words + if refusal.suppress { " suppress" } else { "" }
}

#[test]
fn answers_of_http_providers_and_reports_are_understood() {
    let number = PhoneNumber::parse("+491701234567").expect("number");
    let mut wrong = Vec::new();
    for answer in answers().filter(|answer| answer.provider != "smtp") {
        let response = ApiResponse {
            status: answer.stage.parse().unwrap_or_default(),
            headers: http::HeaderMap::new(),
            body: answer.text.clone().into_bytes(),
        };
        let refusal = match answer.provider {
            "report" => classify_reply(&answer.text, answer.stage),
            "twilio" => twilio::refusal(&response, &number),
            "fcm" => fcm::refusal(&response),
            provider => response.refusal(provider, &[]),
        };
        let found = meaning(&refusal);
        if found != answer.meaning {
            let Answer {
                provider,
                stage,
                text,
                meaning,
            } = answer;
            wrong.push(format!("{provider} {stage} {text}: {found}, not {meaning}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
