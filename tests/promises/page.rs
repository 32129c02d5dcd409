//! The status page in a real browser: what it shows, at any width, to people with and without the right token.

use keylane_tests::{Browser, Reply, Server, Setup, Sink, fill, items, until};

const WIDE: u32 = 1280;
const PHONE: u32 = 390;

/// The config's tokens, with the hash of `the-readers-token`.
fn tokens() -> String {
    let hash = "ab331257bf201d7521ad6271a0d82607ab0a3ddea1a95aeff2e874dd40782933";
    format!(", tokens: [{{ name: reader, role: read, sha256: \"{hash}\" }}]")
}

/// ING-5, ING-8, SEC-3: problems stand out: rejected messages, stuck keys, topics without a pipeline. Nothing is wider
/// than the window, and no column is lost on a phone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_shows_what_needs_a_look_at_any_width() {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let sink = Sink::start().await;
    sink.behave(|call| match call.key.as_deref() {
        Some("poison") => Reply::Status(422),
        Some(_) => Reply::Status(500),
        None => Reply::Status(200),
    });
    let setup = Setup {
        more: (", unread: { partitions: 1 }".to_owned(), String::new()),
        ..Setup::pipeline(&["retry: { retries: 1, base: 5ms, max: 20ms }"])
    };
    let mut server = Server::new(&setup, &sink);
    server.start().await;
    fill(&server, &items("poison", 0, 3)).await;
    fill(&server, &items(&"a-key-of-some-length-".repeat(8), 0, 2)).await;
    let unread = keylane_tests::client().post(server.url("/v1/topics/unread/messages"));
    let unread = unread.header("content-type", "application/json").body("{\"payload\":1}");
    assert_eq!(unread.send().await.expect("an answer").status().as_u16(), 202);

    for (width, dark) in [(WIDE, false), (PHONE, true)] {
        browser.looks(width, dark).await;
        browser.open(&server.url("/")).await;
        browser
            .shows("byId('ready').textContent === 'ready' && byId('ready').classList.contains('good')")
            .await;
        browser.shows("cell('pipelines', 'dead').textContent === '3'".replace("cell", FIND).as_str()).await;
        let tinted = "getComputedStyle(cell('pipelines', 'dead')).color === getComputedStyle(cell('pipelines', 'stuck')).color && \
                      getComputedStyle(cell('pipelines', 'dead')).color !== getComputedStyle(cell('pipelines', 'name')).color";
        browser.shows(&tinted.replace("cell", FIND)).await;
        browser
            .shows("!byId('unread').hidden && byId('unread-list').textContent.includes('unread: 1 messages')")
            .await;
        browser
            .shows(&"cell('waiting', 'why').textContent.startsWith('answered 500')".replace("cell", FIND))
            .await;
        browser.shows("document.documentElement.scrollWidth <= innerWidth").await;
        // Every column of a pipeline can be seen without scrolling sideways.
        let inside = "[...document.querySelectorAll('#pipelines td')].every((td) => \
                      td.getBoundingClientRect().width > 0 && td.getBoundingClientRect().right <= innerWidth)";
        browser.shows(inside).await;
        let ground = browser.eval("getComputedStyle(document.body).backgroundColor").await;
        let is_dark = ground.as_str().expect("a colour").starts_with("rgb(20");
        assert_eq!(is_dark, dark, "{ground}");
        // A long reason, such as a page of HTML from a handler, does not fill the screen; a click shows all of it.
        let long = "(() => { const why = reason('<p>no luck</p>'.repeat(300)); document.querySelector('main').append(why); \
                    const folded = why.getBoundingClientRect().height; why.click(); \
                    return [folded, why.getBoundingClientRect().height]; })()";
        let heights = browser.eval(long).await;
        let (folded, open) = (heights[0].as_f64().expect("px"), heights[1].as_f64().expect("px"));
        assert!(folded < 60.0 && open > 150.0, "{heights}");
    }
    browser.assert_content();

    server.kill9().await;
    browser
        .shows("byId('ready').textContent === 'not reachable' && byId('ready').classList.contains('bad')")
        .await;
}

/// The cell of a column in the first row of a table.
const FIND: &str =
    "((table, column) => byId(table).tBodies[0].rows[0].querySelector(`[data-label=\"${column}\"]`))";

/// ADM-2, SEC-3: the page tells a wrong token from a missing one; with the right one everything works, links too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_token_is_said_to_be_wrong_and_the_right_one_opens_all() {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let sink = Sink::start().await;
    let mut server = Server::new(&Setup { server: tokens(), ..Setup::default() }, &sink);
    server.start().await;
    browser.looks(WIDE, false).await;
    browser.open(&server.url("/")).await;
    browser.shows("!byId('login').hidden && byId('login-why').textContent.includes('needs a token')").await;
    let enter = |token: &str| {
        format!("byId('token').value = '{token}'; document.querySelector('#login button').click(); true")
    };
    browser.eval(&enter("not-this-one")).await;
    browser.shows("byId('login-why').textContent.includes('does not know that token')").await;
    browser.eval(&enter("the-readers-token")).await;
    browser.shows("byId('login').hidden && byId('pipelines').tBodies[0].rows.length === 1").await;
    browser.eval("byId('show-metrics').click(); true").await;
    browser.shows("byId('metrics-text').textContent.includes('kafka_consumer_lag')").await;
    // Every link of the page leads somewhere without a token of its own.
    let links = browser.eval("[...document.links].map((link) => link.href)").await;
    for link in links.as_array().expect("a list") {
        let link = link.as_str().expect("an address").to_owned();
        let opened = until(&link, async || keylane_tests::client().get(&link).send().await.ok()).await;
        assert_eq!(opened.status().as_u16(), 200, "{link}");
    }
    // A reload does not ask again.
    browser.open(&server.url("/")).await;
    browser.shows("byId('login').hidden && byId('pipelines').tBodies[0].rows.length === 1").await;
    browser.assert_content();
}
