#!/bin/sh
# Keys and certificates. Private keys are readable by their owner only and stay where they are made.
#
#   sh keys.sh server NAME [NAME ...]   at the server: by which names or addresses nodes reach it
#   sh keys.sh node CLIENT              at a node: its key, and a certificate for its own machine
#   sh keys.sh roster                   at the server: server/keys.csv from server/public/CLIENT.pub
set -eu
umask 077
cd "$(dirname "$0")"
days=825

fail() { echo "keys.sh: $1" >&2; exit 2; }

certificates() {  # FOLDER NAMES: an authority of its own, and a certificate that it vouches for
    [ ! -e "$1/ca.crt" ] || fail "$1/ca.crt exists already; remove $1 to make other certificates"
    mkdir -p "$1"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:secp384r1 -nodes -days $days -sha256 \
        -subj "/CN=fedspend authority" -keyout "$1/ca.key" -out "$1/ca.crt" \
        -addext "basicConstraints=critical,CA:TRUE,pathlen:0" 2>/dev/null
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:secp384r1 -nodes -sha256 \
        -subj "/CN=fedspend" -keyout "$1/server.key" -out "$1/server.csr" 2>/dev/null
    printf 'subjectAltName=%s\n' "$2" > "$1/server.ext"
    openssl x509 -req -in "$1/server.csr" -CA "$1/ca.crt" -CAkey "$1/ca.key" -CAcreateserial \
        -days $days -sha256 -extfile "$1/server.ext" -out "$1/server.crt" 2>/dev/null
    rm -f "$1/server.csr" "$1/server.ext" "$1/ca.srl"
    chmod 644 "$1/ca.crt" "$1/server.crt"
}

alternative() {  # NAME ...: as a certificate lists them
    list="DNS:localhost,IP:127.0.0.1"
    for name in "$@"; do
        case "$name" in
            localhost | 127.0.0.1) ;;
            *[!0-9.]*) list="$list,DNS:$name" ;;
            *) list="$list,IP:$name" ;;
        esac
    done
    echo "$list"
}

case "${1:-}" in
    server)
        [ $# -ge 2 ] || fail "say by which name nodes reach the server: sh keys.sh server NAME"
        shift
        certificates server/tls "$(alternative "$@")"
        echo "made server/tls; give server/tls/ca.crt, and nothing else of it, to every node"
        ;;
    node)
        [ $# -eq 2 ] && [ -d "nodes/$2" ] || fail "say which node: sh keys.sh node CLIENT"
        [ ! -e "nodes/$2/node.key" ] || fail "nodes/$2/node.key exists already"
        certificates "nodes/$2/tls" "$(alternative)"
        ssh-keygen -q -t ecdsa -b 384 -N "" -C "$2" -f "nodes/$2/node.key"
        ssh-keygen -lf "nodes/$2/node.key.pub"
        echo "give nodes/$2/node.key.pub to the server, and read the line above out on the phone"
        ;;
    roster)
        echo "client,key" > server/keys.csv.new
        for file in server/public/*.pub; do
            [ -e "$file" ] || fail "there is no server/public/CLIENT.pub"
            client=$(basename "$file" .pub)
            echo "$client,$(cut -d ' ' -f 1,2 "$file")" >> server/keys.csv.new
        done
        mv server/keys.csv.new server/keys.csv
        echo "wrote server/keys.csv with $(($(wc -l < server/keys.csv) - 1)) keys"
        ;;
    *)
        sed -n '2,6s/^# \{0,1\}//p' "$0"
        exit 2
        ;;
esac
