use serde_json::json;

use super::*;
use crate::testing::{load_template, templates as shipped};

fn load(files: &[(&str, &str)]) -> Result<Templates, String> {
    load_template("t", files)
}

/// Loads one template for e-mail with settings and an HTML part.
fn load_html(settings: &str, subject: &str, html: &str) -> Result<Templates, String> {
    load(&[
        ("template.toml", settings),
        ("email.en.subject", subject),
        ("email.en.html", html),
    ])
}

fn find<'a>(
    templates: &'a Templates,
    name: &str,
    channel: Channel,
    locale: Option<&str>,
) -> FoundTemplate<'a> {
    let name = TemplateName::parse(name).expect("name");
    let locale = locale.map(|locale| Locale::parse(locale).expect("tag"));
    let found = templates.find(&name, channel, locale.as_ref());
    found.expect("a variant")
}

fn render(found: &FoundTemplate<'_>, variables: &Value) -> Result<MessageContent, String> {
    let rendered = found.render(&object(variables), VariableAuthor::Service);
    rendered.map_err(|error| error.to_string())
}

/// Returns subject, text and HTML of an e-mail.
fn email(found: &FoundTemplate<'_>, variables: &Value) -> (String, String, String) {
    let rendered = render(found, variables).expect("renders");
    let MessageContent::Email {
        subject,
        text,
        html,
    } = rendered
    else {
        panic!("{rendered:?}");
    };
    (subject, text, html.expect("HTML"))
}

fn object(json: &Value) -> Map<String, Value> {
    json.as_object().expect("object").clone()
}

#[test]
fn shipped_templates_exist_for_every_locale() {
    let templates = shipped();
    let mut rows = Channel::ALL
        .map(|channel| ("welcome", channel, "name", "Ada"))
        .to_vec();
    for (template, variable, value) in [
        ("account-confirm", "code", "04812345"),
        ("account-reset", "code", "04812345"),
        ("account-notice", "event", "new_network"),
    ] {
        rows.push((template, Channel::Email, variable, value));
    }
    for (template, channel, variable, value) in rows {
        let of = |locale: &str| {
            let found = find(&templates, template, channel, Some(locale));
            assert_eq!(found.locale.as_str(), locale);
            assert_eq!(found.missing(&Map::new()), [variable]);
            let content = render(&found, &json!({variable: value})).expect("renders");
            let content = serde_json::to_string(&content).expect("JSON");
            assert!(variable == "event" || content.contains(value), "{content}");
            content
        };
        assert_ne!(of("en"), of("de"), "{template}");
    }
}

#[test]
fn variable_of_one_part_only_is_a_warning() {
    assert_eq!(shipped().warnings().count(), 0);
    let base = [
        ("template.toml", "version = 1"),
        ("email.en.subject", "{{ only_here }}"),
        ("email.en.html", "{{ name }}"),
        ("email.de.subject", "{{ only_here }}"),
        ("email.de.html", "{{ name }}"),
    ];
    for (file, text, expected) in [
        ("email.en.txt", "{{ name }}", vec![]),
        (
            "email.en.txt",
            "{{ nmae }}",
            vec!["`nmae` is used in email.en.txt only"],
        ),
        ("sms.en.txt", "{{ short }}", vec![]),
    ] {
        let templates = load(&[&base[..], &[(file, text)]].concat()).expect("valid");
        let found: Vec<&String> = templates.warnings().map(|(_, text)| text).collect();
        assert_eq!(found, expected, "{file}: {text}");
    }
}

#[test]
fn locale_falls_back_to_language_and_default() {
    let templates = shipped();
    for (wanted, used) in [("de-AT", "de"), ("fr", "en")] {
        let found = find(&templates, "welcome", Channel::Sms, Some(wanted));
        assert_eq!(found.locale.as_str(), used);
    }
    let nope = TemplateName::parse("nope").expect("name");
    let refused = templates.find(&nope, Channel::Sms, None).err();
    assert_eq!(refused, Some("there is no template of this name"));
}

#[test]
fn variables_are_data_and_html_is_escaped() {
    let html = "<p>Hello {{ name }}</p><ul><li>{{ order.total }}</li></ul>";
    let templates = load_html("version = 3", "Hello {{ name }}", html).expect("valid");
    let found = find(&templates, "t", Channel::Email, None);
    assert_eq!(found.settings.version, 3);
    for (variables, missing) in [
        (json!({"name": 1, "order": {}}), &["order.total"][..]),
        (
            json!({"name": null, "order": {"total": null}}),
            &["name", "order.total"],
        ),
    ] {
        assert_eq!(found.missing(&object(&variables)), missing);
    }
    for unprintable in [json!({"a": 1}), json!(["a"])] {
        let told = json!({"name": unprintable, "order": {"total": 1}});
        render(&found, &told).expect_err("no text");
    }
    let evil = "<script>{{ 7*7 }}</script>\r\nBcc: x@y.z";
    let evil = json!({"name": evil, "order": {"total": "{% for %}"}});
    let (subject, text, html) = email(&found, &evil);
    assert_eq!(subject, "Hello <script>{{ 7*7 }}</script>  Bcc: x@y.z");
    assert!(html.contains("&lt;script&gt;{{ 7*7 }}"));
    let expected = "Hello <script>{{ 7*7 }}</script> Bcc: x@y.z\n{% for %}";
    assert_eq!(text, expected);
}

#[test]
fn rendering_is_bounded_in_steps_and_bytes() {
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
    let templates = load(&[
        ("template.toml", "version = 1"),
        ("sms.en.txt", endless),
        ("push.en.title", "{{ name * 600 }}"),
        ("push.en.txt", "x"),
    ])
    .expect("valid templates");
    for (channel, expected) in [
        (Channel::Sms, "fuel"),
        (Channel::Push, "more than 512 bytes"),
    ] {
        let found = find(&templates, "t", channel, None);
        let error = render(&found, &json!({"name": "abc"})).expect_err("rendering fails");
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn invalid_template_set_is_rejected_with_all_errors() {
    let refused = load(&[
        ("template.toml", "version = 0\ncolour = 1"),
        ("email.en.html", "x"),
    ])
    .expect_err("invalid templates");
    assert!(
        refused.contains("template.toml:1: version") && refused.contains("template.toml:2: colour"),
        "{refused}"
    );
    let refused = load(&[
        ("template.toml", "version = 1"),
        ("email.en.html", "<a href=\"{{ link }}\">x</a>\n{{ oops"),
        ("sms.xx_.txt", ""),
        ("fax.en.txt", ""),
    ])
    .expect_err("invalid templates");
    for part in [
        "email.en.html:1: href",
        "email.en.html:2:",
        "sms.xx_.txt: is not named",
        "fax.en.txt",
        "lacks email.en.subject",
    ] {
        assert!(refused.contains(part), "{part} in {refused}");
    }
}

#[test]
fn url_filter_allows_safe_schemes_only() {
    let html = "<a href=\"{{ link | url }}\">x</a>";
    let templates = load_html("version = 1", "s", html).expect("valid");
    let found = find(&templates, "t", Channel::Email, None);
    for (link, is_safe) in [
        ("https://x.example/a?b=1", true),
        ("javascript:alert(1)", false),
        ("JaVaScRiPt:alert(1)", false),
        ("data:text/html,x", false),
        ("x", false),
    ] {
        let rendered = render(&found, &json!({"link": link}));
        assert_eq!(rendered.is_ok(), is_safe, "{link}");
    }
}

#[test]
fn unfiltered_expression_in_url_attribute_is_rejected() {
    let load_html = |html: &str| load_html("version = 1", "s", html);
    for good in [
        "<a href='{{ l | url }}'>{{ x }}</a>",
        "<A HREF = \"{{- a | url -}}\">x</A>",
        "<a {% if x %}class=\"{{ y }}\"{% endif %} href=\"https://a.example/\">x</a>",
        "<img alt=\"{{ a }} > {{ b }}\" src=\"{{ a | url }}\">",
        "<td background=\"{{ order.image | url }}\" style=\"color: {{ c }}; background: url(a.png)\">href={{ x }}</td>",
    ] {
        assert_eq!(load_html(good).err(), None, "{good}");
    }
    for bad in [
        "<a href=\"{{ l }}\">",
        "<a href=\"{% if x %}{{ l }}{% endif %}\">",
        "<a href=\"{{ a or b | url }}\">",
        "<a href=\"{{ (a or b) | url }}\">",
        "<a href=\"{{ l | url | upper }}\">",
        "<a href=\"{{ l | url }}{{ m | url }}\">",
        "<a href=\"https://x.example/{{ l }}\">",
        "<a href={{ l | url }}>",
        "<a href{# #}=\"{{ l }}\">",
        "<a {{ l }}>",
        "<a {% if x > 1 %}href=\"{{ l }}\"{% endif %}>",
        "<a title='{{ \"'\" }}>' href='{{ l }}'>",
        "<!--[if mso]><v:rect src=\"{{ l }}\"><![endif]-->",
        "<form action='{{ l }}'>",
        "<button formaction='{{ l }}'>",
        "<img srcset=\"{{ a | url }} 1x, {{ b | url }} 2x\">",
        "<video poster='{{ l }}'>",
        "<td background='{{ l }}'>",
        "<use xlink:href='{{ l }}'/>",
        "<td style=\"background: URL( '{{ l | url }}' )\">",
        "<style>p { background: url({% if x %}{{ l }}{% endif %}) }</style>",
    ] {
        let refused = load_html(&format!("<p>\n{bad}")).expect_err(bad);
        assert!(refused.contains("email.en.html:2: "), "{bad}: {refused}");
    }
}

#[test]
fn user_text_is_limited_and_never_a_link() {
    let settings =
        "version = 1\nuser_variables = ['name']\nunverified_addresses = ['email', 'push']";
    let html = "<a href=\"{{ link | url }}\">{{ name }}</a>";
    let templates = load_html(settings, "{{ name }} {{ note }}", html).expect("valid");
    let found = find(&templates, "t", Channel::Email, None);
    let unverified = |channel| *found.settings.unverified_addresses.get(channel);
    assert_eq!(Channel::ALL.map(unverified), [true, false, true]);
    let link = "https://x.example/";
    let told = json!({"name": "evil.example", "note": "own.example", "link": link});
    let (subject, _, html) = email(&found, &told);
    assert_eq!(subject, "evil. example own.example");
    assert!(html.contains("\">evil. example<"));
    let by_user = found.render(&object(&told), VariableAuthor::User);
    assert!(by_user.is_err(), "a user's text is no link");
    let long = json!({"name": "a".repeat(101), "note": ["x"], "link": "a".repeat(100), "n": 1});
    let (name, note) = (("name", "too_long"), ("note", "invalid_type"));
    for (author, expected) in [
        (VariableAuthor::Service, &[name][..]),
        (VariableAuthor::User, &[name, note]),
    ] {
        let mistakes = found.user_text_mistakes(&object(&long), author);
        let mistakes = mistakes
            .iter()
            .map(|(name, code, _)| (name.as_str(), *code));
        assert_eq!(mistakes.collect::<Vec<_>>(), expected);
    }
}

#[test]
fn category_is_the_name_unless_given_or_transactional() {
    let with = |settings: &str| {
        let settings = format!("version = 1\n{settings}");
        load(&[("template.toml", &settings), ("sms.en.txt", "x")])
    };
    for (settings, category) in [
        ("", Some("t")),
        ("category = 'news'", Some("news")),
        ("transactional = true", None),
        ("transactional = false", Some("t")),
    ] {
        let templates = with(settings).expect("valid");
        assert_eq!(templates.category("t"), category, "{settings}");
        assert_eq!(templates.categories().into_iter().next(), category);
        assert_eq!(templates.category("deleted"), Some("deleted"));
    }
    for settings in [
        "category = 'No <b>'",
        "category = 'a'\ntransactional = true",
        "unsubscribe = true",
    ] {
        let error = with(settings).expect_err("is rejected");
        assert!(error.contains("template.toml:"), "{error}");
    }
}
