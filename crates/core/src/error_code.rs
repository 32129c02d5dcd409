//! The list of every error code that an operator can meet, from whichever crate the error comes.
//!
//! Each variant of [`ErrorCode`] is one code, such as `KL-1001`, and has a page under `docs/errors/`; `cargo xtask
//! tidy` checks that the page exists. A code is never reused for another error: people search for the code, and alerts
//! match on it.

use std::fmt;

macro_rules! error_codes {
    ($($(#[$about:meta])* $name:ident = $text:literal,)*) => {
        /// An error code that a page under `docs/errors/` explains. Displayed as `KL-` and four digits.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum ErrorCode {
            $($(#[$about])* $name,)*
        }

        impl ErrorCode {
            /// The code as users see it, for example `KL-1001`.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(ErrorCode::$name => $text,)*
                }
            }
        }
    };
}

error_codes! {
    /// The config file cannot be read.
    ConfigUnreadable = "KL-1001",
    /// The config file is not valid YAML.
    ConfigNotYaml = "KL-1002",
    /// The config has a setting that Keylane does not know.
    UnknownSetting = "KL-1003",
    /// The config uses a setting that this version does not support yet.
    SettingNotYet = "KL-1004",
    /// A setting has a value of the wrong kind.
    WrongValue = "KL-1005",
    /// A required setting is missing.
    MissingSetting = "KL-1006",
    /// Two settings contradict each other.
    ContradictorySettings = "KL-1007",
    /// An environment variable or a file that the config refers to is missing.
    MissingOutsideValue = "KL-1008",
    /// The server would be open to other machines without any token.
    OpenToAll = "KL-1009",
    /// The data folder cannot be opened.
    FolderNotOpened = "KL-1101",
    /// The broker cannot be reached.
    BrokerUnreachable = "KL-1102",
    /// The broker is closed.
    BrokerClosed = "KL-1103",
    /// The broker has stopped.
    BrokerStopped = "KL-1104",
    /// The partition count has changed.
    PartitionsChanged = "KL-1105",
    /// The position is not there.
    NoSuchPosition = "KL-1106",
    /// Stored data is damaged.
    DamagedData = "KL-1107",
    /// The broker refuses the request.
    RequestRefused = "KL-1108",
    /// The broker does not accept our log-in.
    CredentialsRefused = "KL-1109",
    /// A right is missing.
    RightMissing = "KL-1110",
    /// More replicas than brokers.
    TooManyReplicas = "KL-1111",
    /// A topic that holds Keylane's own state would not be kept whole.
    TopicNotKept = "KL-1112",
    /// A record that another program wrote cannot become a Keylane message.
    ForeignRecord = "KL-1113",
    /// A newer version of Keylane wrote the stored data.
    WrittenByNewer = "KL-1114",
    /// The disk is full.
    DiskFull = "KL-1115",
    /// The group is in use.
    GroupInUse = "KL-1120",
    /// There is no such group.
    UnknownGroup = "KL-1121",
    /// No backup was made.
    NoBackup = "KL-1122",
    /// The cluster refuses a topic's settings.
    TopicSettingsRefused = "KL-1130",
    /// A topic of Keylane's own state is not there.
    OwnTopicMissing = "KL-1131",
    /// Unknown topic.
    UnknownTopic = "KL-1201",
    /// The message cannot be taken.
    InvalidMessage = "KL-1202",
    /// The message is too large.
    MessageTooLarge = "KL-1203",
    /// The topic is full.
    TopicFull = "KL-1204",
    /// Too many calls or bytes wait for the broker's acknowledgement.
    TooMuchInFlight = "KL-1205",
    /// The broker did not take the message.
    MessageNotTaken = "KL-1206",
    /// The body cannot be read.
    BodyUnreadable = "KL-1207",
    /// No message was taken.
    NoMessageTaken = "KL-1208",
    /// The content type or encoding of the request is not accepted.
    FormNotTaken = "KL-1209",
    /// The request is too large.
    RequestTooLarge = "KL-1210",
    /// The request's body did not arrive in time.
    BodyDidNotCome = "KL-1211",
    /// The server is shutting down.
    ShuttingDown = "KL-1212",
    /// No such path.
    NoSuchPath = "KL-1213",
    /// The path does not take this HTTP method.
    MethodDoesNotFit = "KL-1214",
    /// The name cannot be a topic's name.
    InvalidTopicName = "KL-1215",
    /// The request asks for something that this version does not support yet.
    HeaderNotYet = "KL-1216",
    /// Too many connections.
    TooManyConnections = "KL-1217",
    /// The server is not ready to take messages.
    NotReady = "KL-1218",
    /// The limit of topics that are created by their first use is reached.
    NoMoreTopics = "KL-1219",
    /// The spill is full.
    SpillFull = "KL-1220",
    /// The server is starting.
    Starting = "KL-1221",
    /// The head of the request can be read in two ways.
    AmbiguousHead = "KL-1222",
    /// The head of the request cannot be read.
    UnreadableHead = "KL-1223",
    /// The broker's commit mirrors another journal than the one that was found.
    OtherJournal = "KL-1301",
    /// The journal is shorter than it was before.
    ShorterJournal = "KL-1302",
    /// The topic was deleted and made anew.
    TopicMadeAnew = "KL-1303",
    /// The topic has another number of partitions.
    OtherPartitionCount = "KL-1304",
    /// This version does not know a journal record.
    UnknownRecord = "KL-1305",
    /// This version can read a journal record, but cannot carry out what the record says.
    RecordNotCarriedOut = "KL-1306",
    /// The journal's beginning is lost.
    JournalBeginningLost = "KL-1307",
    /// A pipeline cannot start.
    PipelineNotStarted = "KL-1308",
    /// Unknown pipeline.
    UnknownPipeline = "KL-1309",
    /// An outbox cannot be relayed.
    OutboxNotRelayed = "KL-1310",
    /// A topic's new number of partitions cannot be accepted.
    PartitionsNotAccepted = "KL-1311",
    /// The journal is written in a newer format.
    NewerJournal = "KL-1312",
    /// The journals cannot be upgraded to a newer format.
    JournalsNotUpgraded = "KL-1313",
    /// Handlers block every thread that Keylane lets them block.
    AllThreadsBlocked = "KL-1320",
    /// A background task ended unexpectedly.
    TaskEnded = "KL-1321",
    /// The address is in use.
    AddressInUse = "KL-1401",
    /// The server cannot listen on its address.
    CannotListen = "KL-1402",
    /// A pipeline's handler cannot be built from its config.
    HandlerNotMade = "KL-1403",
    /// Pipelines did not finish draining in time.
    NotDrained = "KL-1404",
    /// A compacted topic takes no message without a key.
    KeylessInCompacted = "KL-1405",
    /// An earlier message of the same key was refused.
    EarlierRefused = "KL-1406",
    /// The request needs a token.
    TokenNeeded = "KL-1501",
    /// The token's role does not allow the request.
    RoleNeeded = "KL-1502",
    /// Only a client on the same machine may make this request.
    ThisMachineOnly = "KL-1503",
    /// The query's parameters make no sense.
    InvalidQuery = "KL-1504",
    /// A web page of another site sent the request.
    OtherSite = "KL-1505",
    /// The topic's settings let a message be acknowledged that only one broker has.
    AcknowledgedByOne = "KL-1601",
    /// The topic's settings let a replica that lacks acknowledged messages become leader.
    UncleanElection = "KL-1602",
    /// The topic takes a message's append time from the producer's clock.
    ProducersTime = "KL-1603",
    /// The topic keeps only one copy of each message.
    OneCopy = "KL-1604",
    /// The topic keeps messages for less than a day.
    ShortRetention = "KL-1605",
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
