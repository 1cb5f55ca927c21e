//! The parts of the interface that pages share: palette, filters and kinds of buttons.

use super::FRAGMENTS;
use crate::testing::{Answers, Console};

/// The changes that take something away from somebody, or cannot be undone.
const DANGEROUS: &str = "notification.cancel provider.pause suppression.remove user.disable \
    user.sign_out user.reset_password user.remove_from_group";

/// Returns the values of an attribute in the tags that begin with a text; empty where it is absent.
fn values<'h>(html: &'h str, tag: &str, attribute: &str) -> Vec<&'h str> {
    let start = format!(" {attribute}=\"");
    let value = |rest: &'h str| {
        let tag = rest.split_once('>')?.0;
        tag.split_once(&start)?.1.split('"').next()
    };
    let tags = html.split(tag).skip(1);
    tags.map(|rest| value(rest).unwrap_or_default()).collect()
}

#[tokio::test]
async fn palette_offers_what_contains_every_word() {
    let console = Console::start(Answers::Hostile).await;
    let paths = [
        ("ROLL%20history", "/history /search"),
        ("ada@example.com", "/search"),
        ("%3Cscript%3E", "/routes /users/%3Cscript%3E /search"),
        ("up", "/upstreams /suppression /users /search"),
    ];
    for (typed, expected) in paths {
        let path = format!("/fragments/palette?q={typed}");
        let (_, html) = console.get(&path, "viewer").await;
        let found = values(&html, "<div role=\"option\"", "data-href");
        let mut expected = expected.split(' ').chain(["/requests?principal="]);
        assert!(
            found
                .iter()
                .all(|it| it.starts_with(expected.next().unwrap_or("?"))),
            "{typed}: {found:?}"
        );
        assert_eq!(expected.next(), None, "{typed}: {found:?}");
        assert!(!html.contains("<script"), "{html}");
    }
}

#[tokio::test]
async fn filter_is_a_link_to_the_page_without_it() {
    let console = Console::start(Answers::Hostile).await;
    let path = "/fragments/requests?route=a%26b&status=5xx&other=1";
    let (_, html) = console.get(path, "viewer").await;
    let links = values(&html, "<a class=\"chip set\"", "href");
    assert_eq!(links, ["/requests?status=5xx", "/requests?route=a%26b"]);
    assert!(html.contains("Route <strong>a&amp;b</strong>"), "{html}");
    assert!(
        values(&html, "<input name=\"route\"", "value") == ["a&amp;b"],
        "{html}"
    );
}

#[tokio::test]
async fn regions_and_cells_are_named_in_words() {
    let console = Console::start(Answers::Hostile).await.sampled().await;
    for fragment in FRAGMENTS {
        let path = format!("/fragments/{fragment}");
        let (_, html) = console.get(&path, "operator").await;
        let mut names = values(&html, "<div class=\"scroll\"", "aria-label");
        let is_title = |name: &str| name.starts_with(char::is_uppercase) && !name.contains('/');
        assert!(
            names.iter().all(|name| is_title(name)),
            "{fragment}: {names:?}"
        );
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{fragment}: {names:?}");
        // On a narrow window, rows are cards, whose values need the names of their columns.
        let labels = values(&html, "<td", "data-label");
        assert!(!labels.contains(&""), "{fragment}: {labels:?}");
    }
}

#[tokio::test]
async fn kind_of_a_button_has_one_meaning_on_all_pages() {
    let console = Console::start(Answers::Hostile).await.sampled().await;
    for fragment in FRAGMENTS {
        let path = format!("/fragments/{fragment}");
        let (_, html) = console.get(&path, "operator").await;
        let mut kinds = values(&html, "<button", "class");
        kinds.retain(|kind| !["", "danger", "chip"].contains(kind));
        let is_known = kinds.is_empty() || kinds == ["primary"];
        assert!(is_known, "{fragment}: {kinds:?}");
        for form in html.split("data-action=\"").skip(1) {
            let form = form.split("</form>").next().unwrap_or_default();
            let name = form.split('"').next().unwrap_or_default();
            let is_dangerous = DANGEROUS.split(' ').any(|known| known == name);
            let expected = if is_dangerous { "danger" } else { "" };
            assert_eq!(values(form, "<button", "class"), [expected], "{name}");
        }
    }
}
