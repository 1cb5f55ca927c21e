//! The content of the start page.

use std::net::SocketAddr;

use crate::addresses::Addresses;
use crate::web::start_page::{Part, StartPage};

/// Returns the parts with their addresses.
pub(super) fn content(addresses: &Addresses, client: reqwest::Client) -> StartPage {
    StartPage {
        parts: services(addresses)
            .into_iter()
            .chain([console(addresses)])
            .chain(development(addresses))
            .collect(),
        client,
    }
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

/// The three services, which have admin listeners.
fn services(addresses: &Addresses) -> [Part; 3] {
    let service = |name, purpose, address, admin| Part {
        name,
        purpose,
        address: url(address),
        page: None,
        admin: Some(admin),
    };
    [
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
    ]
}

/// The console.
fn console(addresses: &Addresses) -> Part {
    Part {
        name: "Console",
        purpose: "For operators. The command postern console-link prints a link that signs you in.",
        address: url(addresses.console),
        page: Some(url(addresses.console)),
        admin: None,
    }
}

/// The parts that replace an operator's own systems.
fn development(addresses: &Addresses) -> [Part; 5] {
    let part = |name, purpose, address| Part {
        name,
        purpose,
        address: url(address),
        page: None,
        admin: None,
    };
    [
        part(
            "Identity pool",
            "Speaks the protocol of Amazon Cognito.",
            addresses.identity_pool,
        ),
        part(
            "Actor service",
            "A sample: profiles of users.",
            addresses.actor,
        ),
        part(
            "Document service",
            "A sample: resumes of users.",
            addresses.document,
        ),
        Part {
            page: Some(format!("{}/auth/social/login", url(addresses.proxy))),
            ..part(
                "Social provider",
                "Asks which person to be, without a password.",
                addresses.social,
            )
        },
        Part {
            address: format!("{} (SMTP {})", url(addresses.mail), addresses.smtp),
            page: Some("/mail".to_owned()),
            ..part(
                "Mail catcher",
                "Keeps every mail that is sent, and sends none on.",
                addresses.mail,
            )
        },
    ]
}
