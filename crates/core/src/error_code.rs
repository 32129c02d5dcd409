//! The codes of all errors that an operator meets, in whichever crate they arise.
//!
//! Each has a page under `docs/errors/`, which `cargo xtask tidy` checks. A code is never given to another error: people
//! search for it, and alerts are made from it.

use std::fmt;

macro_rules! error_codes {
    ($($(#[$about:meta])* $name:ident = $text:literal,)*) => {
        /// The code under which `docs/errors/` explains an error. Shows as `KL-` and four digits.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum ErrorCode {
            $($(#[$about])* $name,)*
        }

        impl ErrorCode {
            /// As it is written.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(ErrorCode::$name => $text,)*
                }
            }
        }
    };
}

error_codes! {
    /// The config cannot be read.
    ConfigUnreadable = "KL-1001",
    /// The config is not YAML.
    ConfigNotYaml = "KL-1002",
    /// Unknown setting.
    UnknownSetting = "KL-1003",
    /// Not in this version.
    SettingNotYet = "KL-1004",
    /// A value of the wrong kind.
    WrongValue = "KL-1005",
    /// A setting is missing.
    MissingSetting = "KL-1006",
    /// Settings contradict each other.
    ContradictorySettings = "KL-1007",
    /// A value from outside is missing.
    MissingOutsideValue = "KL-1008",
    /// Open to other machines without tokens.
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
    /// A topic of ours would not be kept whole.
    TopicNotKept = "KL-1112",
    /// A record that Keylane cannot take.
    ForeignRecord = "KL-1113",
    /// A newer version wrote this.
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
    /// Too much in flight.
    TooMuchInFlight = "KL-1205",
    /// The broker did not take the message.
    MessageNotTaken = "KL-1206",
    /// The body cannot be read.
    BodyUnreadable = "KL-1207",
    /// No message was taken.
    NoMessageTaken = "KL-1208",
    /// The form is not taken.
    FormNotTaken = "KL-1209",
    /// The request is too large.
    RequestTooLarge = "KL-1210",
    /// The body did not come.
    BodyDidNotCome = "KL-1211",
    /// The server is shutting down.
    ShuttingDown = "KL-1212",
    /// No such path.
    NoSuchPath = "KL-1213",
    /// The method does not fit.
    MethodDoesNotFit = "KL-1214",
    /// This cannot be a topic.
    InvalidTopicName = "KL-1215",
    /// Not in this version.
    HeaderNotYet = "KL-1216",
    /// Too many connections.
    TooManyConnections = "KL-1217",
    /// Not ready.
    NotReady = "KL-1218",
    /// No more topics are made by first use.
    NoMoreTopics = "KL-1219",
    /// The spill is full.
    SpillFull = "KL-1220",
    /// The server is starting.
    Starting = "KL-1221",
    /// The head of the request can be read in two ways.
    AmbiguousHead = "KL-1222",
    /// The head of the request cannot be read.
    UnreadableHead = "KL-1223",
    /// The commit belongs to another journal.
    OtherJournal = "KL-1301",
    /// The journal is shorter than it was.
    ShorterJournal = "KL-1302",
    /// The topic was made anew.
    TopicMadeAnew = "KL-1303",
    /// The topic has another number of partitions.
    OtherPartitionCount = "KL-1304",
    /// A journal record is not known.
    UnknownRecord = "KL-1305",
    /// A journal record is not carried out.
    RecordNotCarriedOut = "KL-1306",
    /// The journal's beginning is lost.
    JournalBeginningLost = "KL-1307",
    /// A pipeline cannot start.
    PipelineNotStarted = "KL-1308",
    /// Unknown pipeline.
    UnknownPipeline = "KL-1309",
    /// An outbox cannot be relayed.
    OutboxNotRelayed = "KL-1310",
    /// The partitions cannot be accepted.
    PartitionsNotAccepted = "KL-1311",
    /// The journal is written by a newer version.
    NewerJournal = "KL-1312",
    /// The journals cannot be upgraded.
    JournalsNotUpgraded = "KL-1313",
    /// Handlers block all threads that they may block.
    AllThreadsBlocked = "KL-1320",
    /// A background task ended unexpectedly.
    TaskEnded = "KL-1321",
    /// The address is in use.
    AddressInUse = "KL-1401",
    /// Cannot listen.
    CannotListen = "KL-1402",
    /// The handler cannot be made.
    HandlerNotMade = "KL-1403",
    /// Pipelines were not drained in time.
    NotDrained = "KL-1404",
    /// A compacted topic takes no message without a key.
    KeylessInCompacted = "KL-1405",
    /// An earlier message of the same key was refused.
    EarlierRefused = "KL-1406",
    /// A token is needed.
    TokenNeeded = "KL-1501",
    /// Another role is needed.
    RoleNeeded = "KL-1502",
    /// Only this machine may do this.
    ThisMachineOnly = "KL-1503",
    /// The query makes no sense.
    InvalidQuery = "KL-1504",
    /// A web page of another site asked for this.
    OtherSite = "KL-1505",
    /// A message that one broker has is acknowledged.
    AcknowledgedByOne = "KL-1601",
    /// A replica that lacks messages may become leader.
    UncleanElection = "KL-1602",
    /// The age of messages is what producers say.
    ProducersTime = "KL-1603",
    /// There is one copy only.
    OneCopy = "KL-1604",
    /// Messages are kept for less than a day.
    ShortRetention = "KL-1605",
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
