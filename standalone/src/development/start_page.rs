//! The content of the start page.

use crate::lifecycle::Addresses;
use crate::web::start_page::{Part, StartPage};

/// Returns the parts with their addresses, and the commands to try.
pub(super) fn content(addresses: &Addresses, client: reqwest::Client) -> StartPage {
    let url = |address: std::net::SocketAddr| format!("http://{address}");
    let service = |name, purpose, address, admin| Part {
        name,
        purpose,
        address: url(address),
        page: None,
        admin: Some(admin),
    };
    let part = |name, purpose, address, page: Option<&str>| Part {
        name,
        purpose,
        address: url(address),
        page: page.map(|path| format!("{}{path}", url(addresses.mail))),
        admin: None,
    };
    let parts = vec![
        service(
            "Gateway",
            "The only address that clients use.",
            addresses.proxy,
            addresses.proxy_admin,
        ),
        service(
            "Authentication",
            "Sign-in, registration, tokens.",
            addresses.auth,
            addresses.auth_admin,
        ),
        service(
            "Notifications",
            "E-mail, SMS and push.",
            addresses.notify,
            addresses.notify_admin,
        ),
        part(
            "Identity pool",
            "Speaks the protocol of Amazon Cognito.",
            addresses.identity_pool,
            None,
        ),
        part(
            "Actor service",
            "A sample: profiles of users.",
            addresses.actor,
            None,
        ),
        part(
            "Document service",
            "A sample: resumes of users.",
            addresses.document,
            None,
        ),
        Part {
            page: Some(format!("{}/auth/social/login", url(addresses.proxy))),
            ..part(
                "Social provider",
                "Asks which person to be, without a password.",
                addresses.social,
                None,
            )
        },
        Part {
            address: format!("{} (SMTP {})", url(addresses.mail), addresses.smtp),
            ..part(
                "Mail catcher",
                "Keeps every mail that is sent, and sends none on.",
                addresses.mail,
                Some("/mail"),
            )
        },
    ];
    StartPage {
        parts,
        commands: commands(&url(addresses.proxy)),
        client,
    }
}

fn commands(gateway: &str) -> Vec<(&'static str, String)> {
    let json = "-H 'Content-Type: application/json'";
    let registration = format!(
        "TOKENS=$(curl -s {gateway}/auth/register {json} \\\n  -d '{{\"email\":\"ada@example.com\",\"password\":\"Correct horse battery 9\",\"profile\":{{\"firstName\":\"Ada\"}}}}'); echo \"$TOKENS\""
    );
    let me = format!(
        "AUTH=\"Authorization: Bearer $(echo \"$TOKENS\" | sed 's/.*\"accessToken\":\"\\([^\"]*\\)\".*/\\1/')\"\ncurl -sw '\\n' {gateway}/auth/me -H \"$AUTH\""
    );
    let mail = format!(
        "ID=$(curl -s {gateway}/auth/me -H \"$AUTH\" | sed 's/.*\"userId\":\"\\([^\"]*\\)\".*/\\1/')\ncurl -sw '\\n' {gateway}/notifications -H \"$AUTH\" {json} \\\n  -d '{{\"channel\":\"email\",\"recipient\":{{\"actorId\":\"'$ID'\"}},\"template\":\"welcome\",\"variables\":{{\"name\":\"Ada\"}}}}'"
    );
    vec![
        ("Register a person:", registration),
        ("Ask who that is:", me),
        ("Send that person a mail, which appears under Mail:", mail),
    ]
}
