"""Completion scripts of the shells. Each calls `rondo completion --words WORD ...` with the words before the cursor.

An answer is a line `VALUE<tab>DESCRIPTION`; `@files` and `@folders` stand for paths.
"""

BASH = r"""# bash completion of rondo: eval "$(rondo completion bash)" in ~/.bashrc
_rondo() {
  local -a typed
  local line=${COMP_LINE:0:COMP_POINT} current prefix="" value
  read -ra typed <<< "$line"
  [[ $line == *[[:blank:]] ]] && typed+=("")
  current=${typed[-1]}
  # Readline splits words at = and :, so replies begin after the last one.
  [[ $current == *[=:]* ]] && prefix=${current%"${current##*[=:]}"}
  COMPREPLY=()
  while IFS=$'\t' read -r value _; do
    if [[ $value == @files || $value == @folders ]]; then
      compopt -o filenames
      [[ $value == @files ]] && value=-f || value=-d
      while IFS= read -r value; do COMPREPLY+=("$value"); done < <(compgen $value -- "${current#"$prefix"}")
    else
      COMPREPLY+=("${value#"$prefix"}")
    fi
  done < <(command "${typed[0]}" completion --words "${typed[@]:1}" 2> /dev/null)
}
complete -F _rondo rondo
"""

ZSH = r"""#compdef rondo
# zsh completion of rondo: source <(rondo completion zsh) in ~/.zshrc, after compinit
_rondo() {
  local -a found
  local value text
  local -a paths
  while IFS=$'\t' read -r value text; do
    case $value in
      @files) paths=(_files) ;;
      @folders) paths=(_files -/) ;;
      *) found+=("${value//:/\\:}:$text") ;;
    esac
  done < <(command ${words[1]} completion --words "${(@)words[2,CURRENT-1]}" "$PREFIX" 2> /dev/null)
  (( $#found )) && _describe -V rondo found
  (( $#paths )) && { [[ $PREFIX == *=* ]] && compset -P '*='; $paths }
}
compdef _rondo rondo
"""

FISH = r"""# fish completion of rondo: rondo completion fish | source, in ~/.config/fish/config.fish
function __rondo_complete
    set -l before (commandline -opc)
    set -l current (commandline -ct)
    for line in (command $before[1] completion --words $before[2..] "$current" 2> /dev/null)
        if contains -- "$line" @files @folders
            set -l prefix ""
            string match -qr '^-[^=]*=' -- $current; and set prefix (string match -r '^-[^=]*=' -- $current)
            set -l path (string replace -r '^-[^=]*=' '' -- "$current")
            set -l places (__fish_complete_directories "$path" "")
            test "$line" = @files; and set places (__fish_complete_path "$path")
            for place in $places
                echo $prefix$place
            end
        else
            echo $line
        end
    end
end
complete -c rondo -f -a '(__rondo_complete)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
