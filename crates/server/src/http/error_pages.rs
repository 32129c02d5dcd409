//! Serves the pages of `docs/errors/`: one for each error code, at the path that a problem's `type` names.

macro_rules! pages {
    ($($code:literal)*) => {
        /// Each error code with its page.
        pub(super) static PAGES: &[(&str, &str)] = &[
            $(($code, include_str!(concat!("../../../../docs/errors/", $code, ".md"))),)*
        ];
    };
}

pages! {
    "KL-1001" "KL-1002" "KL-1003" "KL-1004" "KL-1005" "KL-1006" "KL-1007" "KL-1008" "KL-1009"
    "KL-1101" "KL-1102" "KL-1103" "KL-1104" "KL-1105" "KL-1106" "KL-1107" "KL-1108" "KL-1109"
    "KL-1110" "KL-1111" "KL-1112" "KL-1113" "KL-1114" "KL-1115"
    "KL-1120" "KL-1121" "KL-1122" "KL-1130" "KL-1131"
    "KL-1201" "KL-1202" "KL-1203" "KL-1204" "KL-1205" "KL-1206" "KL-1207" "KL-1208" "KL-1209"
    "KL-1210" "KL-1211" "KL-1212" "KL-1213" "KL-1214" "KL-1215" "KL-1216" "KL-1217" "KL-1218" "KL-1219"
    "KL-1220" "KL-1221" "KL-1222" "KL-1223"
    "KL-1301" "KL-1302" "KL-1303" "KL-1304" "KL-1305" "KL-1306" "KL-1307" "KL-1308" "KL-1309"
    "KL-1310" "KL-1311" "KL-1312" "KL-1313"
    "KL-1320" "KL-1321"
    "KL-1401" "KL-1402" "KL-1403" "KL-1404" "KL-1405" "KL-1406"
    "KL-1501" "KL-1502" "KL-1503" "KL-1504" "KL-1505"
    "KL-1601" "KL-1602" "KL-1603" "KL-1604" "KL-1605"
}

/// The page of a code.
pub(crate) fn page(code: &str) -> Option<&'static str> {
    PAGES.iter().find(|(known, _)| *known == code).map(|(_, page)| *page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_there_is_can_be_served_and_begins_with_its_code() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors");
        let mut codes: Vec<String> = std::fs::read_dir(folder)
            .expect("it is there")
            .filter_map(|entry| {
                let name = entry.expect("read").file_name().into_string().expect("text");
                name.strip_suffix(".md").filter(|code| code.starts_with("KL-")).map(str::to_owned)
            })
            .collect();
        codes.sort();
        let known: Vec<_> = PAGES.iter().map(|(code, _)| (*code).to_owned()).collect();
        assert_eq!(known, codes);
        for (code, page) in PAGES {
            assert!(page.starts_with(&format!("# {code}: ")), "{code}");
        }
    }
}
