//! `keylane tail`: prints the messages of a topic, and by default waits for new ones. It reads without a group, so it
//! changes nothing on the server.
//!
//! With `--follow`, the server sends the messages of all partitions in one answer that does not end. With
//! `--no-follow`, the command reads each partition page by page up to its end. By default a message is a line with the
//! beginning of its payload; with `--json` it is the server's object.

use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::client::{Client, ServerArgs};
use crate::commands::topics::Topics;
use crate::failure::Failure;
use crate::show;

/// Messages of a page: the most that the server returns in one answer.
const PAGE_MESSAGES: u64 = 1_000;
/// Bytes of one message as JSON. No topic accepts a larger message, so a longer line does not come from a Keylane
/// server, and the command must not buffer it without end.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Characters of the payload on a line for people. `--json` shows the whole payload.
const SHOWN_MAX: usize = 200;

/// Arguments of `tail`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Topic to read
    topic: String,
    /// Where to begin: `earliest`, `latest` or a position. Default: `latest`, with --no-follow `earliest`
    #[arg(long)]
    from: Option<Start>,
    /// Read only this partition; required if --from is a position
    #[arg(long)]
    partition: Option<u32>,
    /// Wait for new messages (the default)
    #[arg(long, overrides_with = "no_follow")]
    follow: bool,
    /// Stop at the end of the topic
    #[arg(long, overrides_with = "follow")]
    no_follow: bool,
    /// Stop after this many messages
    #[arg(short = 'n', long = "limit")]
    limit: Option<u64>,
    /// Print each message as JSON on one line, with the whole payload
    #[arg(long)]
    json: bool,
}

/// Where to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    Earliest,
    Latest,
    Position(u64),
}

impl FromStr for Start {
    type Err = String;

    fn from_str(text: &str) -> Result<Start, String> {
        match text {
            "earliest" => Ok(Start::Earliest),
            "latest" => Ok(Start::Latest),
            number => number
                .parse()
                .map(Start::Position)
                .map_err(|_| "neither `earliest` nor `latest` nor a position".to_owned()),
        }
    }
}

impl Start {
    fn query(self) -> String {
        match self {
            Start::Earliest => "earliest".to_owned(),
            Start::Latest => "latest".to_owned(),
            Start::Position(position) => position.to_string(),
        }
    }
}

/// The fields of a message that a line for people shows.
#[derive(Debug, Deserialize)]
struct ShownMessage<'a> {
    partition: u32,
    offset: u64,
    key: Option<String>,
    key_base64: Option<String>,
    appended_at: Option<i64>,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
    payload_base64: Option<String>,
}

/// Prints messages, up to a limit.
struct Printer {
    json: bool,
    left: u64,
}

/// Runs the command.
pub async fn run(args: Args) -> Result<(), Failure> {
    if matches!(args.from, Some(Start::Position(_))) && args.partition.is_none() {
        return Err(Failure::Wrong(
            "--from with a position needs --partition: each partition counts from 0".to_owned(),
        ));
    }
    let client = Client::new(&args.server)?;
    let mut printer = Printer { json: args.json, left: args.limit.unwrap_or(u64::MAX) };
    match args.no_follow {
        false => follow(&client, &args, &mut printer).await,
        true => pages(&client, &args, &mut printer).await,
    }
}

async fn follow(client: &Client, args: &Args, printer: &mut Printer) -> Result<(), Failure> {
    let mut query = vec![("from", args.from.unwrap_or(Start::Latest).query()), ("follow", "true".to_owned())];
    query.extend(args.partition.map(|partition| ("partition", partition.to_string())));
    let mut response = client.stream(&messages_of(&args.topic), &query).await?;
    let mut rest: Vec<u8> = Vec::new();
    while printer.left > 0 {
        let Some(chunk) = response.chunk().await.map_err(|error| client.unreachable(&error))? else {
            return Err(Failure::Failed("the server ended the stream; it may be draining".to_owned()));
        };
        rest.extend_from_slice(&chunk);
        let mut at = 0;
        while let Some(end) = rest[at..].iter().position(|byte| *byte == b'\n') {
            printer.print_bytes(client, &rest[at..at + end])?;
            at += end + 1;
        }
        rest.drain(..at);
        if rest.len() > MESSAGE_BYTES_MAX {
            return Err(Failure::Failed(format!(
                "the server sent a line of more than {MESSAGE_BYTES_MAX} bytes; is it a Keylane server?"
            )));
        }
    }
    Ok(())
}

async fn pages(client: &Client, args: &Args, printer: &mut Printer) -> Result<(), Failure> {
    for partition in partitions(client, args).await? {
        let mut from = args.from.unwrap_or(Start::Earliest);
        while printer.left > 0 {
            let limit = PAGE_MESSAGES.min(printer.left);
            let query =
                [("partition", partition.to_string()), ("from", from.query()), ("limit", limit.to_string())];
            let page: Vec<Box<RawValue>> = client.get(&messages_of(&args.topic), &query).await?;
            for message in &page {
                printer.print(client, message.get())?;
            }
            // The server may end a page early because of its bytes. Only an empty page is the end of the partition.
            let Some(last) = page.last() else { break };
            let last: ShownMessage<'_> = client.read(last)?;
            from = Start::Position(last.offset + 1);
        }
    }
    Ok(())
}

async fn partitions(client: &Client, args: &Args) -> Result<Vec<u32>, Failure> {
    if let Some(partition) = args.partition {
        return Ok(vec![partition]);
    }
    let answer: Topics = client.get(&["admin", "topics"], &[]).await?;
    match answer.topics.iter().find(|topic| topic.name == args.topic) {
        Some(topic) => Ok((0..topic.partitions).collect()),
        None => Err(Failure::Failed(format!(
            "there is no topic {}; `keylane topics` lists those there are",
            args.topic
        ))),
    }
}

fn messages_of(topic: &str) -> [&str; 4] {
    ["admin", "topics", topic, "messages"]
}

impl Printer {
    fn print_bytes(&mut self, client: &Client, line: &[u8]) -> Result<(), Failure> {
        let text = String::from_utf8_lossy(line);
        match text.trim() {
            // Blank lines keep an idle connection alive.
            "" => Ok(()),
            text => self.print(client, text),
        }
    }

    fn print(&mut self, client: &Client, message: &str) -> Result<(), Failure> {
        if self.left == 0 {
            return Ok(());
        }
        self.left -= 1;
        if self.json {
            return show::line(&show::json_on_one_line(message));
        }
        let shown = serde_json::from_str(message).map_err(|error| client.not_understood(&error))?;
        show::line(&for_people(&shown))
    }
}

/// `when partition@position key payload`.
fn for_people(message: &ShownMessage<'_>) -> String {
    let when = message
        .appended_at
        .and_then(|ms| Timestamp::from_millisecond(ms).ok())
        .map_or_else(|| "-".to_owned(), |at| format!("{at:.3}"));
    let key = match (&message.key, &message.key_base64) {
        (Some(key), _) => show::harmless(key),
        (None, Some(encoded)) => text_of(encoded),
        (None, None) => "-".to_owned(),
    };
    let payload = match (message.payload, &message.payload_base64) {
        (Some(json), _) => cut(show::harmless(json.get())),
        (None, Some(encoded)) => cut(text_of(encoded)),
        (None, None) => "null".to_owned(),
    };
    format!("{when} {}@{} {key} {payload}", message.partition, message.offset)
}

/// Decodes base64 and shows the bytes as text if they are UTF-8, otherwise as base64.
fn text_of(encoded: &str) -> String {
    let text = STANDARD.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    text.map_or_else(|| format!("base64:{}", show::harmless(encoded)), |text| show::harmless(&text))
}

fn cut(text: String) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(message: &str) -> String {
        for_people(&serde_json::from_str(message).expect("a message"))
    }

    /// ADM-8, SEC-5.
    #[test]
    fn a_message_is_one_line_for_people_whatever_is_in_it() {
        let json = "{\"partition\":1,\"offset\":7,\"key\":\"a\\u001b[2J\",\"appended_at\":0,\"payload\":{\"n\":\n1}}";
        assert_eq!(shown(json), "1970-01-01T00:00:00.000Z 1@7 a\\u001b[2J {\"n\":\\n1}");
        let text = r#"{"partition":0,"offset":0,"key":null,"payload_base64":"aGkKCg=="}"#;
        assert_eq!(shown(text), "- 0@0 - hi\\n\\n");
        let bytes = r#"{"partition":0,"offset":1,"key_base64":"/w==","payload_base64":"/w=="}"#;
        assert_eq!(shown(bytes), "- 0@1 base64:/w== base64:/w==");
        let null = r#"{"partition":0,"offset":2,"key":""}"#;
        assert_eq!(shown(null), "- 0@2  null");
    }

    /// ADM-8.
    #[test]
    fn a_long_payload_is_cut_between_characters() {
        let long = cut("ü".repeat(SHOWN_MAX + 1));
        assert_eq!(long.chars().count(), SHOWN_MAX + 1);
        assert!(long.ends_with('…'));
    }

    /// ADM-8.
    #[test]
    fn where_to_begin_is_a_word_or_a_position() {
        assert_eq!("earliest".parse(), Ok(Start::Earliest));
        assert_eq!("42".parse(), Ok(Start::Position(42)));
        assert!("first".parse::<Start>().is_err());
        assert!("-1".parse::<Start>().is_err());
    }
}
